"""What one step of training and one of testing do, and which of them are compiled."""

from contextlib import nullcontext
from dataclasses import replace

import pytest
import torch
from torch import nn

from surge.layers.hooks import binary_layers
from surge.recipes.recipe import MethodSpec
from surge.train import step
from surge.train.step import Sums, TrainStep
from tests.train.small import CPU, make_trainer, small_recipe, small_sets

BONN = replace(small_recipe("cnn-recu"), method=MethodSpec("bonn"))
"""A recipe whose objective learns, too."""


def one_step(trainer):
    trainer.begin_epoch()
    trainer.step(*next(trainer.batches()))


@pytest.fixture
def short(monkeypatch):
    """Let forwards compute in bfloat16, as on a GPU."""
    monkeypatch.setattr(step, "compute_dtype", lambda *_: torch.bfloat16)


@pytest.mark.parametrize(("world", "compiled"), [(1, {32}), (2, {16})])
def test_only_full_batches_are_compiled(tmp_path, monkeypatch, world, compiled):
    seen = []

    def noting(forward, model, *, lean):
        return lambda *tensors: (seen.append(len(tensors[0])), forward(*tensors))[1]

    monkeypatch.setattr(step, "compiled_step", noting)
    trainer = make_trainer(tmp_path, small_recipe("cnn-bnn"), small_sets(train=43), compiled=True)
    trainer.train_loader.world = world
    trainer.begin_epoch()
    for part, weight in trainer.batches():
        trainer.step(part, weight)
    assert set(seen) == compiled


@pytest.mark.parametrize("lean", [True, False])
def test_compiler_hears_whether_the_backward_is_lean(tmp_path, monkeypatch, lean):
    heard = []
    monkeypatch.setattr(step, "compiled_step", lambda *_, lean: heard.append(lean))
    make_trainer(tmp_path, small_recipe("cnn-bnn"), compiled=True, lean=lean)
    assert heard == [lean]


def test_gradients_are_exchanged_in_the_last_part_of_a_batch_alone(tmp_path):
    trainer = make_trainer(tmp_path, small_recipe("cnn-bnn", accumulate=4))
    quiet = []

    class Wrapped(nn.Module):
        forward = trainer.parts.model.forward

        def no_sync(self):
            quiet.append(1)
            return nullcontext()

    trainer.train_loader.world = 2
    trainer.train_step.network = Wrapped()
    one_step(trainer)
    assert len(quiet) == 3


def test_auxiliary_weights_wait_where_the_first_step_is_not_their_turn(tmp_path):
    """As in a run that is resumed: what it counted itself would begin anew."""
    trainer = make_trainer(tmp_path, small_recipe("cnn-recu-surge-fourth"))
    before = [p.clone() for p in trainer.parts.compensation.parameters()]
    trainer.begin_epoch()
    part, weight = next(trainer.batches())
    trainer.step(part, weight, 1.0)
    pairs = zip(before, trainer.parts.compensation.parameters(), strict=True)
    assert all(torch.equal(old, new) for old, new in pairs)


def test_weight_scales_the_gradient_and_not_what_is_reported(tmp_path):
    found = []
    for weight in (1.0, 2.0):
        trainer = make_trainer(tmp_path / str(weight), small_recipe("cnn-bnn"))
        trainer.begin_epoch()
        part, _ = next(trainer.batches())
        trainer.step(part, weight)
        found.append((trainer.parts.model.fc.weight.grad, trainer.train_step.sums.read()))
    (single, sums), (double, others) = found
    torch.testing.assert_close(double, 2 * single)
    assert sums == others


def test_extra_losses_are_no_part_of_the_sums(tmp_path, monkeypatch):
    trainer = make_trainer(tmp_path, small_recipe("cnn-bnn"))
    monkeypatch.setattr(step, "extra_loss", lambda model: torch.tensor(1e6))
    one_step(trainer)
    assert trainer.train_step.sums.read()[0] < 1e6


def test_sums_hold_no_graph(tmp_path):
    trainer = make_trainer(tmp_path, small_recipe("cnn-bnn"))
    one_step(trainer)
    assert not trainer.train_step.sums.values.requires_grad


def test_sums_count_beyond_what_float32_can():
    sums, zero = Sums(CPU), torch.tensor(0.0)
    for count in (2**24, 1):
        sums.add(zero, zero, count)
    assert sums.read()[2] == 2**24 + 1


def test_injected_share_is_the_mean_over_images(tmp_path, monkeypatch):
    trainer, shares = make_trainer(tmp_path, sets=small_sets(train=43)), iter([0.5, 0.25])
    compensation = trainer.parts.compensation
    monkeypatch.setattr(compensation, "injected", lambda: torch.tensor(next(shares)))
    trainer.begin_epoch()
    for part, weight in trainer.batches():
        trainer.step(part, weight)
    assert trainer.train_step.sums.read()[3] == 0.5 * 32 + 0.25 * 11


def test_gradients_of_all_that_learns_are_clipped_together_before_the_step(tmp_path):
    trainer = make_trainer(tmp_path, replace(BONN, train=replace(BONN.train, clip=0.01)))
    optimizer, norms = trainer.parts.optimizer, []

    def measure(*_):
        gradients = [p.grad for group in optimizer.param_groups for p in group["params"]]
        norms.append(float(nn.utils.get_total_norm(gradients)))

    optimizer.register_step_pre_hook(measure)
    nn.init.normal_(trainer.train_step.learned.centre, std=100.0)
    one_step(trainer)
    assert norms == pytest.approx([0.01], rel=1e-3)


def test_methods_act_on_what_the_optimizer_made(tmp_path):
    """BNN clamps its latent weights, which a step this large takes far away."""
    trainer = make_trainer(tmp_path, small_recipe("cnn-bnn", lr=1e5, warmup=0))
    one_step(trainer)
    assert all(layer.weight.abs().max() == 1 for _, layer in binary_layers(trainer.parts.model))


def test_what_an_objective_learns_has_the_rate_that_a_captured_step_reads(tmp_path):
    trainer = make_trainer(tmp_path, BONN)
    parameters = list(trainer.parts.model.parameters())
    rate = torch.tensor(0.1)
    parts = replace(trainer.parts, optimizer=torch.optim.SGD([{"params": parameters, "lr": rate}]))
    objective = trainer.train_step.objective
    TrainStep(parts, parts.model, trainer.train_loader, BONN.train, objective=objective)
    first, second = parts.optimizer.param_groups
    assert second["params"] == list(objective.learned.parameters())
    assert second["lr"] is first["lr"] is rate


def test_short_logits_have_a_float32_loss(tmp_path, short):
    trainer = make_trainer(tmp_path, small_recipe("cnn-bnn"))
    seen, objective = [], trainer.train_step.objective
    inner = objective.criterion
    objective.criterion = lambda *args: (seen.append(args[0].dtype), inner(*args))[1]
    part, _ = next(trainer.batches())
    _, loss, _ = trainer.train_step.compute(trainer.parts.model, part)
    assert (seen, loss.dtype) == ([torch.bfloat16], torch.float32)


def test_short_test_has_float32_logits(tmp_path, short):
    trainer = make_trainer(tmp_path, small_recipe("cnn-bnn"))
    seen = []
    trainer.parts.model.register_forward_hook(lambda *args: seen.append(args[2].dtype))
    logits, _ = trainer.test_step.predict(trainer.test_loader.plan(0))
    assert (seen, logits.dtype) == ([torch.bfloat16], torch.float32)


def test_testing_keeps_no_graph(tmp_path):
    trainer = make_trainer(tmp_path, small_recipe("cnn-bnn"))
    assert not trainer.test_step.predict(trainer.test_loader.plan(0))[0].requires_grad


def test_label_smoothing_is_for_training_alone(tmp_path):
    found = []
    for smoothing in (0.0, 0.3):
        recipe = small_recipe("cnn-bnn", label_smoothing=smoothing)
        found.append(make_trainer(tmp_path / str(smoothing), recipe).evaluate())
    assert found[0] == found[1]
