"""Runs that share a process: what each computes is what it computes alone."""

from contextlib import nullcontext
from dataclasses import replace

import pytest

from surge.recipes import get_recipe
from surge.train.processes.interleaved import draws_in_steps, run_together
from tests.nets import assert_same_tensors
from tests.train.small import make_trainer, small_recipe, trained, weights


def test_noise_of_runs_side_by_side_is_that_of_each_alone(tmp_path):
    recipe = small_recipe("cnn-bnn-surge-noise", epochs=2)
    alone = [trained(tmp_path / f"alone{seed}", recipe, seed=seed)[0] for seed in (0, 1)]
    both = [
        make_trainer(tmp_path / f"both{seed}", recipe, seed=seed, shared=True) for seed in (0, 1)
    ]
    run_together([trainer.run for trainer in both], [nullcontext()] * 2)
    for trainer, expected in zip(both, alone, strict=True):
        assert_same_tensors(weights(trainer), expected)


@pytest.mark.parametrize(
    ("name", "draws"),
    [
        ("digits-cnn-recu", False),
        ("digits-cnn-recu-surge-noise", False),
        ("glue-cola-teacher", True),
        ("voc-ida", True),
    ],
)
def test_steps_that_draw_from_the_generator_of_the_process(name, draws):
    assert draws_in_steps(get_recipe(name)) == draws


def test_stochastic_weights_are_drawn():
    recipe = get_recipe("common-resnet20-binaryconnect")
    assert not draws_in_steps(recipe)
    drawn = replace(recipe.method, options={"stochastic": True})
    assert draws_in_steps(replace(recipe, method=drawn))
