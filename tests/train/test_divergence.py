"""Numbers that are not finite stop a run, and the layer where they began is named."""

import json
import math

import pytest
import torch
from torch import nn

from surge.train import build, divergence, step
from surge.train.checkpoint import found
from surge.train.distributed import World
from surge.train.watch import (
    DivergedError,
    Sentinel,
    first_bad_gradient,
    first_bad_state,
)
from tests.nets import assert_same_tensors
from tests.train.small import make_trainer, small_recipe, weights


class Poison:
    """A forward hook that spoils a layer's output from one call on, in every trainer."""

    def __init__(self, monkeypatch, layer, step):
        real = build.build_network

        def build_poisoned(*args, **kwargs):
            model, compensation = real(*args, **kwargs)
            calls = 0

            def spoil(_module, _args, output):
                nonlocal calls
                calls += model.training
                return output * math.nan if calls > step else output

            model.get_submodule(layer).register_forward_hook(spoil)
            return model, compensation

        monkeypatch.setattr(build, "build_network", build_poisoned)


@pytest.mark.parametrize("layer", ["features.conv1", "features.bn2", "features.conv3", "fc"])
def test_divergence_names_the_layer_where_it_began(tmp_path, monkeypatch, layer):
    Poison(monkeypatch, layer, step=4)
    trainer = make_trainer(tmp_path, small_recipe("cnn-recu"), save_every=1e9)
    with pytest.raises(DivergedError) as caught:
        trainer.run()
    assert str(caught.value) == (
        f'Training diverged in epoch 1 of digits-cnn-recu: the output of "{layer}" '
        "(epoch 1, step 2) is not finite. No checkpoint was written yet."
    )


def test_divergence_keeps_the_last_good_checkpoint(tmp_path, monkeypatch):
    recipe = small_recipe("cnn-recu")
    Poison(monkeypatch, "features.conv2", step=6)  # in the third epoch
    trainer = make_trainer(tmp_path, recipe)
    good = []
    with pytest.raises(DivergedError, match="last good checkpoint is kept in .*checkpoints"):
        trainer.run(lambda _: good.append(weights(trainer)))
    assert [path.name for path in found(trainer.folder.checkpoints)] == [
        "epoch-00002.pt",
        "epoch-00001.pt",
    ]
    monkeypatch.undo()
    again = make_trainer(tmp_path, recipe)
    again.resume()
    assert_same_tensors(weights(again), good[-1])
    assert [row["epoch"] for row in again.folder.metrics()] == [0, 1]


def test_divergence_by_a_huge_learning_rate_is_found(tmp_path):
    recipe = small_recipe("cnn-float", lr=1e30, warmup=0, schedule="constant")
    with pytest.raises(DivergedError, match=r"\(epoch 0, step \d\) is not finite"):
        make_trainer(tmp_path, recipe).run()


def test_search_of_a_lean_run_is_eager(tmp_path, monkeypatch):
    monkeypatch.setattr(step, "compiled_step", lambda forward, model, *, lean: forward)
    recipe = small_recipe("cnn-float", lr=1e30, warmup=0, schedule="constant")
    with pytest.raises(DivergedError, match=r"\(epoch 0, step \d\) is not finite"):
        make_trainer(tmp_path, recipe, compiled=True, lean=True).run()


def test_divergence_that_shows_only_in_the_test_stops_the_run_too(tmp_path, monkeypatch):
    """The last step of an epoch spoiled the weights: its own loss was still finite."""
    trainer = make_trainer(tmp_path, small_recipe("cnn-float"))
    real = trainer.evaluate

    def evaluate():
        with torch.no_grad():
            trainer.parts.model.fc.bias.fill_(math.inf)
        return real()

    monkeypatch.setattr(trainer, "evaluate", evaluate)
    with pytest.raises(DivergedError, match='"fc.bias" is not finite'):
        trainer.run()


def test_search_gives_up_in_time(tmp_path, monkeypatch):
    Poison(monkeypatch, "fc", step=4)
    monkeypatch.setattr(divergence, "PATIENCE", 0.0)
    with pytest.raises(
        DivergedError,
        match='began was not found; by now "features.conv1.weight" is not finite, too',
    ):
        make_trainer(tmp_path, small_recipe("cnn-bnn")).run()


@pytest.mark.parametrize(
    ("row", "train"),
    [
        ("cnn-recu-surge", {}),
        ("cnn-recu-surge-fourth", {}),
        ("cnn-bnn-surge", {"schedule": "steps"}),
        ("cnn-bnn", {"schedule": "detector", "warmup": 0, "warmup_steps": 4}),
    ],
    ids=["plain", "every-fourth", "rate-by-step", "warm-up-by-step"],
)
def test_search_repeats_the_steps_that_were_taken(tmp_path, monkeypatch, row, train):
    """Nothing diverges here: the search must end with the very weights of the run."""
    recipe = small_recipe(row, epochs=1, batch=8, **train)
    trainer = make_trainer(tmp_path, recipe, save_every=1e9)
    trainer.run()
    trainer.folder.checkpoints.joinpath("epoch-00001.pt").unlink()
    trainer.epoch, made = 0, []
    real = type(trainer).__init__

    def note(self, *args, **kwargs):
        made.append(self)
        real(self, *args, **kwargs)

    monkeypatch.setattr(type(trainer), "__init__", note)
    assert divergence.first_bad_layer(trainer) is None
    assert_same_tensors(weights(made[0]), weights(trainer))


def test_search_of_several_processes_has_no_answer(tmp_path):
    trainer = make_trainer(tmp_path, small_recipe("cnn-bnn"))
    trainer.world = World(0, 2)
    assert divergence.first_bad_layer(trainer) is None
    assert str(divergence.diverged_error(trainer)) == (
        "Training diverged in epoch 0 of digits-cnn-bnn: the loss is not finite; where that began "
        "is searched for in one process only. No checkpoint was written yet."
    )


def test_divergence_seen_at_a_checkpoint_inside_an_epoch_ends_the_run_there(tmp_path, monkeypatch):
    Poison(monkeypatch, "features.conv2", step=9)  # the fourth step of the second epoch of six
    trainer = make_trainer(tmp_path, small_recipe("cnn-bnn", batch=16), save_steps=2)
    steps = []
    with pytest.raises(DivergedError, match="diverged in epoch 1 of"):
        trainer.run(on_step=lambda done, _: steps.append(done))
    assert steps == [1, 2, 3, 4, 5, 6, 1, 2, 3, 4]
    again = make_trainer(tmp_path, small_recipe("cnn-bnn", batch=16))
    again.resume()
    assert (again.epoch, again.noted["steps"]) == (1, 2)


def test_no_row_is_written_for_the_epoch_that_diverged(tmp_path, monkeypatch):
    Poison(monkeypatch, "fc", step=4)
    with pytest.raises(DivergedError):
        make_trainer(tmp_path, small_recipe("cnn-bnn")).run()
    lines = (tmp_path / "metrics.jsonl").read_text().splitlines()
    assert [json.loads(line)["epoch"] for line in lines] == [0]


def test_sentinel_leaves_no_hook_behind():
    model = nn.Sequential(nn.Linear(2, 2), nn.ReLU())
    with Sentinel(model) as sentinel:
        model(torch.full((1, 2), math.inf))
    assert sentinel.found == 'the output of "0"'
    assert not any(module._forward_hooks for module in model.modules())


def test_first_bad_gradient_is_the_last_layer_that_has_one():
    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2), nn.Linear(2, 2))
    assert first_bad_gradient(model) is None
    for index in (0, 1):
        model[index].weight.grad = torch.full((2, 2), math.inf)
    model[2].weight.grad = torch.zeros(2, 2)
    assert first_bad_gradient(model) == 'the gradient of "1.weight"'


def test_first_bad_state_looks_at_buffers_too():
    model = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2))
    assert first_bad_state(model) is None
    model[1].running_var.fill_(math.nan)
    assert first_bad_state(model) == '"1.running_var"'
