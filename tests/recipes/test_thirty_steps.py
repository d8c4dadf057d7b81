"""Thirty steps of every method through ``surge train``, with and without SURGE.

The network is that of the digits table; the slow test does the same with every row of ``common``.
"""

import json
import math
from dataclasses import replace
from unittest import mock

import pytest

from surge.cli import _training, main
from surge.recipes import get_recipe, list_recipes
from tests.train.losses import cached_sets

# The tests of GLUE train those of transformers.
ROWS = [name for name in list_recipes("digits") if get_recipe(name).method]


def hurried(name):
    """The recipe for a run of but 30 steps."""
    recipe = get_recipe(name)
    return replace(recipe, train=replace(recipe.train, lr=0.2, warmup=0))


def train(name, folder, *options):
    """Train with the command; return the rows of its metrics."""
    words = ["train", name, "--device", "cpu", "--save-every", "1e9"]
    words += ["--out", str(folder / "run"), "--results", str(folder / "results")]
    with mock.patch.object(_training, "load_sets", cached_sets):
        assert main([*words, *options]) == 0
    rows = [json.loads(row) for row in (folder / "run" / "metrics.jsonl").read_text().splitlines()]
    assert all(math.isfinite(row["train_loss"] + row["test_loss"]) for row in rows)
    return rows


@pytest.mark.parametrize("name", ROWS)
def test_loss_falls_within_thirty_steps(tmp_path, name):
    with mock.patch.object(_training, "get_recipe", hurried):
        rows = train(name, tmp_path, "--limit", "320", "--epochs", "6")  # of 5 batches
    assert rows[-1]["train_loss"] < 0.9 * rows[0]["train_loss"]
    assert sum(row["flips"] for row in rows) > 0
    assert ("scale" in rows[-1]) == name.endswith("-surge")


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in list_recipes() if name.startswith("common-")])
def test_loss_of_the_common_protocol_falls_within_thirty_steps(tmp_path, cifar10_dir, name):
    rows = train(name, tmp_path, "--limit", "4", "--epochs", "30", "--data", str(cifar10_dir))
    assert rows[-1]["train_loss"] < 0.5 * rows[0]["train_loss"]
