"""From a recipe to data, model and optimizer."""

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from torch import nn

from surge.data import load_digits
from surge.errors import CheckpointMismatchError, DataNotFoundError
from surge.recipes import DataSpec, TrainSpec, get_recipe
from surge.train import build
from surge.train.build import (
    build_network,
    build_parts,
    compute_dtype,
    load_sets,
    load_trained_,
    make_loaders,
)
from surge.train.distributed import World
from tests.train.small import CPU, small_recipe, small_sets


def test_digits_come_in_their_two_parts():
    train, test = load_sets(DataSpec("digits"), None)
    assert (len(train), len(test)) == (1438, 359)


def test_held_out_images_come_from_the_training_set():
    train, test = load_sets(DataSpec("digits", held_out=True), None)
    whole = load_digits("train")
    assert len(train) + len(test) == len(whole)
    assert len(test) == pytest.approx(0.1 * len(whole), abs=10)


def test_limit_takes_the_first_of_each_part():
    train, test = load_sets(DataSpec("digits", limit=50), None)
    assert torch.equal(train.images, load_digits("train").images[:50])
    assert len(test) == 50


def test_cifar10_held_out_needs_no_test_file(tmp_path, cifar10_dir):
    folder = tmp_path / "cifar-10-batches-bin"
    folder.mkdir()
    for number in range(1, 6):
        name = f"data_batch_{number}.bin"
        (folder / name).symlink_to(cifar10_dir / "cifar-10-batches-bin" / name)
    train, test = load_sets(DataSpec("cifar10", held_out=True), tmp_path)
    assert (len(train), len(test)) == (45_000, 5_000)
    with pytest.raises(DataNotFoundError, match="test_batch.bin is missing"):
        load_sets(DataSpec("cifar10"), tmp_path)


@pytest.mark.parametrize(
    "device, precision, dtype",
    [
        ("cpu", "bf16", torch.float32),
        ("cpu", "fp32", torch.float32),
        ("cuda", "bf16", torch.bfloat16),
        ("cuda", "fp32", torch.float32),
    ],
)
def test_bf16_is_for_gpus(device, precision, dtype):
    assert compute_dtype(TrainSpec(precision=precision), torch.device(device)) == dtype


def test_loaders_share_the_batch_among_ranks():
    recipe = get_recipe("digits-cnn-bnn")
    seen = []
    for rank in range(2):
        loader, _ = make_loaders(recipe, small_sets(64, 8), 0, CPU, World(rank, 2))
        seen.append([labels for _, labels in loader.batches(0)])
    whole, _ = make_loaders(recipe, small_sets(64, 8), 0, CPU, World())
    (labels,) = [labels for _, labels in whole.batches(0)]
    assert torch.equal(torch.cat([seen[0][0], seen[1][0]]), labels)


def test_optimizer_owns_the_auxiliary_weights_and_is_followed():
    recipe = get_recipe("digits-cnn-recu-surge")
    parts = build_parts(recipe, 0, CPU, torch.zeros(2, 1, 8, 8))
    owned = {id(p) for group in parts.optimizer.param_groups for p in group["params"]}
    assert {id(p) for p in parts.compensation.parameters()} <= owned
    before = parts.compensation.scales()
    parts.model.train()
    parts.model(torch.randn(4, 1, 8, 8)).sum().backward()
    parts.optimizer.step()
    assert parts.compensation.scales() != before


def test_path_options_reach_the_paths():
    recipe = get_recipe("digits-cnn-recu-surge-tied")
    parts = build_parts(recipe, 7, CPU, torch.zeros(2, 1, 8, 8))
    options = {path.options for path in parts.compensation.paths.values()}
    assert options == {replace(recipe.surge, seed=7)}


def test_chosen_number_of_workers_reaches_the_sets(monkeypatch, tmp_path):
    task = SimpleNamespace(load_sets=lambda *given: given)
    monkeypatch.setattr(build, "task_of", lambda spec: task)
    spec = DataSpec("digits")
    assert load_sets(spec, tmp_path, 3) == (spec, tmp_path, 3)


def test_order_of_images_is_that_of_the_seed():
    orders = []
    for seed in (0, 1):
        loader, _ = make_loaders(small_recipe(), small_sets(), seed, CPU, World())
        orders.append(loader.plan(0).permutation.tolist())
    assert orders[0] != orders[1]


def test_weights_are_taken_without_those_of_auxiliary_paths():
    recipe, example = small_recipe(), torch.zeros(2, 1, 8, 8)
    state = build_network(recipe, 1, example)[0].state_dict()
    plain, _ = build_network(replace(recipe, surge=None), 0, example)
    load_trained_(plain, {"model": state}, recipe, Path("x"))
    for name, tensor in plain.state_dict().items():
        assert torch.equal(tensor, state[name]), name


@pytest.mark.parametrize("held", [{}, {"model": {}}])
def test_weights_that_do_not_fit_are_refused_with_their_place(held):
    model = nn.Linear(2, 2)
    with pytest.raises(CheckpointMismatchError, match="in there does not fit the model of digits"):
        load_trained_(model, held, small_recipe(), Path("there"))
