"""The loop: what it reports, how it stops and goes on, and that helpers change nothing."""

import json
import time
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F

from surge.errors import ConfigError
from surge.layers.hooks import binary_layers, extra_loss
from surge.methods.recu import tau_at
from surge.train.distributed import World
from surge.train.loop import LoopOptions
from tests.nets import assert_same_tensors
from tests.train.small import (
    digits,
    make_trainer,
    register_without_norm,
    small_recipe,
    small_sets,
    trained,
    weights,
)

KEYS = {
    "epoch",
    "seconds",
    "lr",
    "train_loss",
    "train_top1",
    "test_loss",
    "test_top1",
    "flips",
}


def test_rows_are_reported_and_written(tmp_path):
    trainer, rows = make_trainer(tmp_path), []
    outcome = trainer.run(rows.append)
    assert [row["epoch"] for row in rows] == [0, 1, 2]
    assert set(rows[1]) == KEYS | {"scale", "injected"}
    assert trainer.folder.metrics() == rows
    assert outcome.finished and outcome.epochs == 3
    assert outcome.last == rows[-1]["test_top1"]
    assert outcome.best == max(row["test_top1"] for row in rows)
    assert rows[outcome.best_epoch]["test_top1"] == outcome.best
    assert outcome.seconds == pytest.approx(sum(row["seconds"] for row in rows), abs=1e-3)
    assert outcome.mode == "eager"


def test_plain_rows_have_no_scale(tmp_path):
    _, rows = trained(tmp_path, small_recipe("cnn-bnn", epochs=1))
    assert set(rows[0]) == KEYS


def test_float_rows_flip_nothing(tmp_path):
    _, rows = trained(tmp_path, small_recipe("cnn-float", epochs=1))
    assert rows[0]["flips"] == 0.0


def test_reported_train_loss_is_the_mean_over_images(tmp_path):
    """One batch and one partial batch, with a learning rate too small to matter."""
    recipe = small_recipe("cnn-bnn", epochs=1, batch=32, lr=1e-12, weight_decay=0.0)
    trainer, rows = make_trainer(tmp_path, recipe, small_sets(train=40)), []
    model = trainer.parts.model
    plan = trainer.train_loader.plan(0)
    total, hits = 0.0, 0
    model.train()
    for index in range(2):
        images, labels = trainer.train_loader.fetch(plan.part(*trainer.train_loader.bounds(index)))
        with torch.no_grad():
            logits = model(images)
        total += float(F.cross_entropy(logits, labels, reduction="sum"))
        hits += int((logits.argmax(1) == labels).sum())
    trainer.run(rows.append)
    assert rows[0]["train_loss"] == pytest.approx(total / 40, rel=1e-6)
    assert rows[0]["train_top1"] == pytest.approx(100 * hits / 40)


def test_test_accuracy_is_that_of_the_model_in_eval_mode(tmp_path):
    trainer, rows = make_trainer(tmp_path, small_recipe("cnn-recu", epochs=1)), []
    trainer.run(rows.append)
    model = trainer.parts.model.eval()
    images, labels = trainer.test_loader.fetch(trainer.test_loader.plan(0))
    with torch.no_grad():
        logits = model(images)
    assert rows[0]["test_top1"] == pytest.approx(
        100 * float((logits.argmax(1) == labels).float().mean())
    )
    assert rows[0]["test_loss"] == pytest.approx(float(F.cross_entropy(logits, labels)), rel=1e-6)


def test_flips_count_the_changed_bits(tmp_path):
    trainer, rows = make_trainer(tmp_path, small_recipe("cnn-bnn", epochs=1)), []
    layers = [layer for _, layer in binary_layers(trainer.parts.model)]
    before = [layer.weight.detach() >= 0 for layer in layers]
    trainer.run(rows.append)
    changed = sum(
        int(((layer.weight >= 0) != old).sum()) for layer, old in zip(layers, before, strict=True)
    )
    assert rows[0]["flips"] == pytest.approx(100 * changed / sum(b.numel() for b in before))
    assert changed > 0


def test_tau_moves_with_the_epochs(tmp_path):
    trainer, seen = make_trainer(tmp_path, small_recipe("cnn-recu", epochs=3)), []
    layers = [layer for _, layer in binary_layers(trainer.parts.model)]
    trainer.run(lambda row: seen.append([float(layer.method.tau) for layer in layers]))
    assert seen == [pytest.approx([tau_at(epoch / 3)] * len(layers)) for epoch in range(3)]


def test_deadline_stops_after_an_epoch_and_the_rest_is_bit_exact(tmp_path):
    whole, _ = trained(tmp_path / "whole")
    first = make_trainer(tmp_path / "run", deadline=time.monotonic())
    outcome = first.run()
    assert (outcome.finished, outcome.epochs) == (False, 1)
    second = make_trainer(tmp_path / "run")
    assert second.resume() == []
    assert second.run().finished
    assert_same_tensors(weights(second), whole)
    epochs = [row["epoch"] for row in second.folder.metrics()]
    assert epochs == [0, 1, 2]


def test_rows_after_the_last_checkpoint_are_written_once(tmp_path):
    """Stopped between the row of an epoch and its checkpoint."""

    def stop(row):
        if row["epoch"] == 1:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        make_trainer(tmp_path).run(stop)
    again = make_trainer(tmp_path)
    assert len(again.folder.metrics()) == 2
    again.resume()
    assert again.epoch == 1
    again.run()
    assert [row["epoch"] for row in again.folder.metrics()] == [0, 1, 2]


@pytest.mark.parametrize("row", ["cnn-recu-surge-noise", "cnn-bnn-surge-tied"])
@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
def test_resume_is_bit_exact_for_every_kind_of_state(tmp_path, row, optimizer):
    recipe = small_recipe(row, optimizer=optimizer, lr=0.01)
    whole, rows = trained(tmp_path / "whole", recipe)
    make_trainer(tmp_path / "run", recipe, deadline=time.monotonic()).run()
    torch.manual_seed(77)  # another process has another random state
    second, later = make_trainer(tmp_path / "run", recipe), []
    second.resume()
    outcome = second.run(later.append)
    assert_same_tensors(weights(second), whole)
    same = [{k: v for k, v in r.items() if k != "seconds"} for r in (*rows[1:], *later)]
    assert same[:2] == same[2:]
    assert outcome.best == max(r["test_top1"] for r in rows)


def test_run_leaves_the_random_state_of_the_caller(tmp_path):
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    trained(tmp_path, small_recipe("cnn-recu-surge-noise", epochs=1))
    assert torch.equal(torch.rand(3), expected)


def test_several_seeds_in_one_process_do_not_touch_each_other(tmp_path):
    recipe = small_recipe(epochs=2)
    alone = {seed: trained(tmp_path / f"a{seed}", recipe, seed=seed)[0] for seed in (0, 1)}
    again = {seed: trained(tmp_path / f"b{seed}", recipe, seed=seed)[0] for seed in (1, 0)}
    for seed in (0, 1):
        assert_same_tensors(again[seed], alone[seed])
    name = "features.conv2.weight"
    assert not torch.equal(alone[0][name], alone[1][name])


def test_checkpoints_follow_the_clock(tmp_path):
    trainer = make_trainer(tmp_path, small_recipe("cnn-bnn"), save_every=1e9)
    trainer.run()
    assert [p.name for p in trainer.folder.checkpoints.iterdir()] == ["epoch-00003.pt"]


def test_partial_batch_can_be_dropped(tmp_path):
    recipe = small_recipe("cnn-bnn", epochs=1, batch=32, drop_last=True)
    trainer = make_trainer(tmp_path, recipe, small_sets(train=40))
    parts = [len(part) for part, _ in trainer.batches()]
    assert parts == [32]


def test_batch_larger_than_the_set_is_the_set(tmp_path):
    trainer = make_trainer(tmp_path, small_recipe("cnn-bnn", batch=64), small_sets(train=20))
    assert [len(part) for part, _ in trainer.batches()] == [20]


@pytest.mark.parametrize("row", ["cnn-bnn", "cnn-bnn-surge"])
def test_accumulation_equals_the_big_batch(tmp_path, row):
    register_without_norm()
    settings = {"epochs": 2, "batch": 32, "lr": 0.02, "model": "without_norm"}
    whole, rows = trained(tmp_path / "a", small_recipe(row, **settings))
    parts, split = trained(tmp_path / "b", small_recipe(row, accumulate=4, **settings))
    for name, tensor in whole.items():
        torch.testing.assert_close(parts[name], tensor, rtol=1e-4, atol=1e-6, msg=name)
    for key in ("train_loss", "train_top1", "test_loss", "test_top1"):
        assert split[-1][key] == pytest.approx(rows[-1][key], rel=1e-4)


def test_accumulation_of_an_uneven_batch_equals_the_big_batch(tmp_path):
    register_without_norm()
    settings = {"epochs": 1, "batch": 32, "lr": 0.02, "model": "without_norm"}
    sets = small_sets(train=43)  # the last batch has 11 images: 3, 3, 3 and 2
    whole, _ = trained(tmp_path / "a", small_recipe("cnn-bnn", **settings), sets)
    parts, _ = trained(tmp_path / "b", small_recipe("cnn-bnn", accumulate=4, **settings), sets)
    for name, tensor in whole.items():
        torch.testing.assert_close(parts[name], tensor, rtol=1e-4, atol=1e-6, msg=name)


def test_criterion_replaces_the_loss(tmp_path):
    """A distillation is a criterion: here the teacher is a fixed network."""
    register_without_norm()
    recipe = small_recipe("cnn-bnn", epochs=1, model="without_norm")
    teacher = make_trainer(tmp_path / "t", recipe, seed=9).parts.model
    seen = []

    def distil(logits, labels, images):
        with torch.no_grad():
            wanted = teacher(images).softmax(1)
        seen.append(len(images))
        return F.cross_entropy(logits, wanted)

    _, rows = trained(tmp_path / "s", recipe, criterion=distil)
    assert seen == [32, 32, 32]
    _, plain = trained(tmp_path / "p", recipe)
    assert rows[0]["train_loss"] != plain[0]["train_loss"]


def test_extra_losses_are_added_to_what_is_minimised_and_not_to_what_is_reported(tmp_path):
    trainer = make_trainer(tmp_path, small_recipe("cnn-recu-surge-align"))
    trainer.begin_epoch()
    part, _ = next(trainer.batches())
    total, loss, _ = trainer.train_step.compute(trainer.parts.model, part)
    extra = extra_loss(trainer.parts.model)
    assert extra > 0
    torch.testing.assert_close(total, loss + extra)


def test_label_smoothing_reaches_the_loss(tmp_path):
    sharp = trained(tmp_path / "a", small_recipe("cnn-bnn", epochs=1))[1]
    smooth = trained(tmp_path / "b", small_recipe("cnn-bnn", epochs=1, label_smoothing=0.3))[1]
    assert smooth[0]["train_loss"] != sharp[0]["train_loss"]


def test_steps_never_wait_for_the_device(tmp_path, monkeypatch):
    """A read of a value inside a step would break its capture in a graph."""
    trainer = make_trainer(tmp_path, small_recipe())
    trainer.begin_epoch()
    parts = list(trainer.batches())

    def refuse(*_, **__):
        raise AssertionError("a step read a value")

    for name in ("item", "cpu", "tolist", "numpy", "__float__", "__int__"):
        monkeypatch.setattr(torch.Tensor, name, refuse)
    for part, weight in parts:
        trainer.train_step(part, weight)


def test_options_default_to_what_the_machine_has():
    options = LoopOptions()
    assert (options.compiled, options.captured, options.dose_every) == (None, None, 10)


def test_metrics_file_is_one_json_object_per_line(tmp_path):
    trained(tmp_path, small_recipe("cnn-bnn", epochs=2))
    lines = (tmp_path / "metrics.jsonl").read_text().splitlines()
    assert [json.loads(line)["epoch"] for line in lines] == [0, 1]


def test_sets_are_not_changed_by_training(tmp_path):
    before = digits("train", 96).images.clone()
    trained(tmp_path, small_recipe("cnn-bnn", epochs=1))
    assert torch.equal(digits("train", 96).images, before)


def test_epochs_between_tests_have_no_test_and_the_last_has_one(tmp_path):
    recipe = small_recipe(epochs=5, test_epochs=3)
    trainer = make_trainer(tmp_path / "some", recipe)
    rows = []
    outcome = trainer.run(rows.append)
    assert [row["epoch"] for row in rows if "test_top1" in row] == [2, 4]
    assert [row["epoch"] for row in rows if "test_loss" in row] == [2, 4]
    assert outcome.last == rows[4]["test_top1"] and outcome.best_epoch in (2, 4)
    every = make_trainer(
        tmp_path / "every", replace(recipe, train=replace(recipe.train, test_epochs=1))
    )
    every.run()
    assert_same_tensors(weights(trainer), weights(every))


def test_run_that_stops_between_tests_goes_on_as_if_it_had_not(tmp_path):
    recipe = small_recipe(epochs=4, test_epochs=4)
    whole = make_trainer(tmp_path / "whole", recipe)
    expected = whole.run()
    first = make_trainer(tmp_path / "half", recipe, deadline=0.0)
    assert not first.run().finished
    again = make_trainer(tmp_path / "half", recipe)
    again.resume()
    outcome = again.run()
    assert (outcome.last, outcome.best_epoch) == (expected.last, 3)


def test_tests_are_at_least_one_epoch_apart():
    with pytest.raises(ConfigError, match="test_epochs=0 must be at least 1"):
        small_recipe(test_epochs=0)


def test_auxiliary_weights_learn_in_every_fourth_step_of_the_run(tmp_path):
    trainer = make_trainer(tmp_path, small_recipe("cnn-recu-surge-fourth"))
    original, turns, learned = trainer.step, [], []

    def watched(part, *numbers):
        before = [p.clone() for p in trainer.parts.compensation.parameters()]
        original(part, *numbers)
        turns.append(numbers[1:])
        pairs = zip(before, trainer.parts.compensation.parameters(), strict=True)
        learned.append(any(not torch.equal(a, b) for a, b in pairs))

    trainer.step = watched
    trainer.run()
    assert turns == [(float(number % 4 > 0),) for number in range(9)]
    assert learned == [number % 4 == 0 for number in range(9)]


def test_seldom_learning_weights_need_one_process(tmp_path):
    with pytest.raises(ConfigError, match="one process"):
        make_trainer(tmp_path, small_recipe("cnn-recu-surge-fourth"), world=World(rank=0, size=2))
