"""A schedule fitted to a time, with the time of a step and of a test given."""

import time
from unittest import mock

import pytest

from surge.errors import ConfigError
from surge.train import budget
from surge.train.loop import LoopOptions
from surge.train.run import RunFolder
from tests.train.small import CPU, small_recipe, small_sets


@pytest.mark.parametrize("text", ["900", "900s", "15m", "0.25h", " 900.0s "])
def test_same_time_is_recorded_in_the_same_words(text):
    assert budget.in_seconds(text) == "900s"


def test_time_that_is_none_names_its_option():
    with pytest.raises(ConfigError, match='--each "soon" is not a time'):
        budget.in_seconds("soon", "--each")


def test_begun_run_lends_its_steps_and_nothing_else(tmp_path):
    held = small_recipe("cnn-bnn", epochs=4, steps=11, lr=0.5)
    RunFolder.create(tmp_path / "run", held, {"seed": 0})
    found = budget.as_begun(small_recipe("cnn-bnn", epochs=600), tmp_path / "run").train
    assert (found.steps, found.epochs, found.lr) == (11, 4, 0.05)


@pytest.mark.parametrize(("apart", "seconds"), [(1, 60.0), (3, 60.0), (3, 4.0)])
def test_steps_and_tests_fit_into_the_time(apart, seconds):
    """An epoch has 3 steps of 0.1 s, a test takes 2 s."""
    recipe = small_recipe("cnn-bnn", epochs=600, test_epochs=apart)
    with mock.patch.object(budget, "_measure", return_value=(0.1, 2.0)):
        found = budget.fitted(
            recipe, small_sets(), seconds, seed=0, device=CPU, options=LoopOptions()
        ).train
    epochs = -(-found.steps // 3)
    tests = epochs // apart + (epochs % apart > 0)
    assert found.epochs == epochs and found.test_epochs == apart
    spent = 0.1 * found.steps + 2.0 * tests
    assert 0.4 * seconds < spent <= seconds


def test_trial_of_slow_steps_is_short():
    """25 steps would take 10 times as long as the run itself."""
    done = []

    class Slow:
        def begin_epoch(self):
            pass

        def batches(self):
            return ((range(8), 1.0) for _ in range(50))

        def step(self, part, weight):
            done.append("step")
            time.sleep(0.02)

        def evaluate(self):
            done.append("test")
            time.sleep(0.05)

    step, test = budget._measure(Slow(), CPU, 0.01)
    assert done == ["step", "step", "test"]
    assert step == pytest.approx(0.02, abs=0.015) and test == pytest.approx(0.05, abs=0.03)
    done.clear()
    budget._measure(Slow(), CPU, 60.0)
    assert done == ["step"] * 25 + ["test"] * 2
