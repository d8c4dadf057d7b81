"""What a smooth network tells auxiliary paths during a run, and that runs still go on exactly."""

import time
from types import SimpleNamespace

import pytest
import torch

from surge.errors import ConfigError
from surge.recipes import get_recipe
from surge.train import guide
from surge.train.task import TextTask
from tests.nets import assert_same_tensors
from tests.train.small import make_trainer, small_recipe, trained, weights

ROWS = ("cnn-recu-surge-signed", "cnn-recu-surge-bias")


@pytest.fixture(autouse=True)
def often(monkeypatch):
    """Nine steps are all that a small run has."""
    monkeypatch.setattr(guide, "SIGN_EVERY", 4)
    monkeypatch.setattr(guide, "BIAS_EVERY", 4)


def test_other_rows_have_no_guide(tmp_path):
    assert make_trainer(tmp_path).guide is None


def test_scales_get_the_signs_that_the_smooth_network_asks_for(tmp_path, monkeypatch):
    trainer = make_trainer(tmp_path, small_recipe("cnn-recu-surge-signed"))
    compensation, real, told, scales = trainer.parts.compensation, guide.calibrate_, [], []

    def listening(*given):
        scales.append(compensation.scales())
        told.append(real(*given))
        return told[-1]

    monkeypatch.setattr(guide, "calibrate_", listening)
    trainer.run()
    assert len(told) == 3  # after steps 0, 4 and 8
    for before, after in zip(told, scales[1:], strict=False):
        assert before.keys() == after.keys()
        assert all(before[name] * after[name] > 0 for name in after)
    assert any(factor < 0 for factors in told for factor in factors.values())
    directions = {name: float(path.direction) for name, path in compensation.paths.items()}
    assert directions == pytest.approx(told[-1])


@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
def test_auxiliary_weights_learn_what_is_missing_and_nothing_else_moves(tmp_path, optimizer):
    """But the scales, which follow them."""
    recipe = small_recipe("cnn-recu-surge-bias", optimizer=optimizer, lr=0.01)
    trainer = make_trainer(tmp_path, recipe)
    names = list(trainer.parts.compensation.paths)
    auxiliary = {f"{name}.auxiliary.weight" for name in names}
    followers = {f"{name}.auxiliary.scale" for name in names}
    step, look = trainer.step, trainer.guide.after_step
    moved = []

    def changes(work):
        before = weights(trainer)
        work()
        return {n for n, tensor in weights(trainer).items() if not torch.equal(tensor, before[n])}

    def watched(part, *numbers):
        assert not changes(lambda: step(part, *numbers)) & auxiliary

    def watched_look(number, part):
        kept = [(p, p.grad) for p in trainer.parts.model.parameters()]
        moved.append(changes(lambda: look(number, part)))
        assert all(p.grad is gradient for p, gradient in kept)

    trainer.step, trainer.guide.after_step = watched, watched_look
    trainer.run()
    assert moved == [auxiliary | followers if number % 4 == 0 else set() for number in range(9)]


def test_what_is_missing_is_learned(tmp_path, monkeypatch):
    monkeypatch.setattr(guide, "BIAS_EVERY", 1)
    errors, real = [], guide.learn_bias_
    monkeypatch.setattr(guide, "learn_bias_", lambda *given: errors.append(real(*given)))
    make_trainer(tmp_path, small_recipe("cnn-recu-surge-bias", epochs=8)).run()
    assert sum(errors[-3:]) < 0.9 * sum(errors[:3])


@pytest.mark.parametrize("row", ROWS)
@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
def test_resume_is_bit_exact(tmp_path, row, optimizer):
    recipe = small_recipe(row, optimizer=optimizer, lr=0.01)
    whole, _ = trained(tmp_path / "whole", recipe)
    make_trainer(tmp_path / "run", recipe, deadline=time.monotonic()).run()
    second = make_trainer(tmp_path / "run", recipe)
    second.resume()
    second.run()
    assert_same_tensors(weights(second), whole)


def test_sentences_have_no_smooth_network():
    recipe = get_recipe("glue-rte-bit-surge-signed")
    with pytest.raises(ConfigError, match="rte-bit-surge-signed: signed= .* classify images"):
        guide.make_guide(SimpleNamespace(recipe=recipe, task=TextTask()))
