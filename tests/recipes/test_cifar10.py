"""The CIFAR-10 rows of the paper: every number of their schedules, and the networks they train."""

from dataclasses import asdict

import pytest
import torch
from torch import nn

import surge
from surge.layers import BinaryConv2d, BinaryLinear, StemConv2d
from surge.models import build_model
from surge.models.parts import Subsample
from surge.recipes import get_recipe, list_recipes
from surge.train.parts import Place
from surge.train.task import Task
from tests.train.small import CPU, small_sets

RECU = (600, 256, 0.1, 5e-4, 5)
IRNET = (400, 128, 0.1, 1e-4, 0)
RBNN = (1000, 256, 0.1, 1e-4, 5)
DETACHED = {"detach_rotation": True}

OWN = {
    "resnet18-rad": (90.5, RECU, {}),
    "resnet18-irnet": (91.5, IRNET, {"t_min": 1e-3}),
    "resnet18-rbnn": (92.2, RBNN, DETACHED),
    "resnet18-recu": (92.8, RECU, {}),
    "resnet20-dorefa": (79.3, RECU, {}),
    "resnet20-dsq": (84.1, RECU, {}),
    "resnet20-slb": (85.5, (500, 100, 0.1, 1e-4, 0), {"start": 0.4}),
    "resnet20-irnet": (86.5, IRNET, {"t_min": 1e-3}),
    "resnet20-recu": (87.4, RECU, {}),
    "vggsmall-xnor": (89.8, RECU, {}),
    "vggsmall-dorefa": (90.2, RECU, {}),
    "vggsmall-irnet": (90.4, (300, 128, 0.007, 1e-4, 0), {"t_min": 1e-1}),
    "vggsmall-rbnn": (91.3, RBNN, DETACHED),
    "vggsmall-dsq": (91.7, RECU, {}),
    "vggsmall-slb": (92.0, (500, 100, 0.02, 5e-4, 0), {"start": 0.3}),
    "vggsmall-recu": (92.2, RECU, {}),
}
"""Printed accuracy, (epochs, batch, learning rate, weight decay, warm-up), options."""

SHARED = {
    "optimizer": "sgd",
    "momentum": 0.9,
    "nesterov": False,
    "decayed": "all",
    "schedule": "cosine",
    "warmup_steps": 0,
    "clip": None,
    "accumulate": 1,
    "label_smoothing": 0.0,
    "drop_last": False,
    "steps": None,
}
"""What no row changes."""


@pytest.mark.parametrize("row", OWN)
def test_cifar10_rows_train_as_their_authors_did(row):
    recipe = get_recipe(f"cifar10-{row}")
    paper, numbers, options = OWN[row]
    own = dict(zip(("epochs", "batch", "lr", "weight_decay", "warmup"), numbers, strict=True))
    train = asdict(recipe.train)
    assert {name: train[name] for name in (*own, *SHARED)} == {**own, **SHARED}
    assert recipe.paper == paper
    assert recipe.method.name == row.rpartition("-")[2] and recipe.method.options == options


ENDS = {
    "resnet18-rad": ("active_strength", 2, 0),
    "resnet18-irnet": ("t", 1e-3, 10),
    "resnet20-irnet": ("t", 1e-3, 10),
    "vggsmall-irnet": ("t", 1e-1, 10),
    "resnet18-rbnn": ("t", 1e-2, 10),
    "vggsmall-rbnn": ("t", 1e-2, 10),
    "resnet20-slb": ("temperature", 1, 1.03**250),
    "vggsmall-slb": ("temperature", 1, 1.03**300),
    "resnet18-recu": ("tau", 0.85, 0.99),
    "resnet20-recu": ("tau", 0.85, 0.99),
    "vggsmall-recu": ("tau", 0.85, 0.99),
}
"""What moves from epoch to epoch, where it starts, and what it reaches at the end of the last."""


@pytest.mark.parametrize("row", ENDS)
def test_cifar10_rows_start_and_end_where_their_authors_do(row):
    recipe = get_recipe(f"cifar10-{row}")
    spec, epochs = recipe.method, recipe.train.epochs
    method = BinaryLinear(4, 2, method=spec.name, method_options=spec.options).method
    state, *expected = ENDS[row]
    found = []
    for epoch in (0, epochs):
        method.on_epoch(epoch, epochs)
        found.append(getattr(method, state).item())
    assert found == pytest.approx(expected, rel=1e-4)


@pytest.mark.parametrize("network", ["resnet20", "resnet18", "vggsmall"])
def test_all_rows_of_a_network_train_recus_with_hardtanh_and_pooled_shortcuts(network):
    shown = get_recipe(f"cifar10-{network}-recu").model
    rows = [get_recipe(f"cifar10-{row}") for row in OWN if row.startswith(network)]
    if network == "resnet20":
        rows += map(get_recipe, list_recipes("common"))
    for recipe in rows:
        unclamped = recipe.method.name == "rad"  # its loss judges what a Hardtanh would clamp
        assert recipe.model.name == shown.name
        assert recipe.model.options == ({"activation": "none"} if unclamped else {})
    model = build_model(shown.name)
    kinds = {type(module) for module in model.modules()}
    assert nn.Hardtanh in kinds and not kinds & {nn.PReLU, nn.ReLU, Subsample}
    assert (nn.AvgPool2d in kinds) == (network != "vggsmall")
    sizes = {m.kernel_size for m in model.modules() if isinstance(m, nn.Conv2d)}
    assert sizes == {(3, 3)}  # no 1x1 in a shortcut


@pytest.mark.parametrize("row", [*OWN, "resnet20-bnn"])
def test_cifar10_rows_keep_the_first_and_the_last_layer_float(row):
    recipe = get_recipe(f"cifar10-{row}")
    model = build_model(recipe.model.name, **recipe.model.options)
    surge.binarize_(model, recipe.method.name, skip=recipe.method.skip)
    first, *between, last = (m for m in model.modules() if isinstance(m, nn.Conv2d | nn.Linear))
    assert type(first) is StemConv2d and type(last) is nn.Linear
    assert all(isinstance(module, BinaryConv2d) for module in between)


@pytest.mark.parametrize("row", ["resnet20-irnet", "vggsmall-irnet", "resnet20-recu"])
def test_cifar10_rows_train_on_all_images_and_test_on_all(row):
    recipe = get_recipe(f"cifar10-{row}")
    sets = small_sets(train=recipe.train.batch + 7, test=40)
    place = Place(CPU, 0, 1, torch.float32, torch.contiguous_format)
    train, test = Task().make_loaders(recipe, sets, 0, place)
    assert [len(labels) for _, labels in train.batches(0)] == [recipe.train.batch, 7]
    assert sum(len(labels) for _, labels in test) == 40 and not test.drop_last
