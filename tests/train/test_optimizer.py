"""Groups and settings of optimizers."""

import pytest
import torch
from torch import nn

from surge.layers import BinaryLinear
from surge.recipes import TrainSpec
from surge.train.build import (
    is_decayed,
    make_optimizer,
    parameter_groups,
)
from tests.train.small import CPU


@pytest.fixture
def net(monkeypatch):
    """A layer whose method has two parameters, each with one wish of its own."""
    net = nn.Sequential(BinaryLinear(4, 3, method="reactnet"), nn.Linear(3, 2))
    method = net[0].method
    method.register_parameter("slow", nn.Parameter(torch.zeros(3)))
    method.register_parameter("kept", nn.Parameter(torch.zeros(3)))
    monkeypatch.setattr(type(method), "lr_factors", {"slow": 0.1})
    monkeypatch.setattr(type(method), "undecayed", ("kept",))
    return net


def found(net, parameter, key, **spec):
    """What the group of a parameter says."""
    groups = parameter_groups(net, TrainSpec(weight_decay=0.5, **spec))
    (group,) = [g for g in groups if any(p is parameter for p in g["params"])]
    return group[key]


def test_slow_parameter_decays_like_the_others(net):
    slow = net[0].method.slow
    assert (found(net, slow, "lr_factor"), found(net, slow, "weight_decay")) == (0.1, 0.5)


def test_undecayed_parameter_learns_like_the_others(net):
    kept = net[0].method.kept
    assert (found(net, kept, "lr_factor"), found(net, kept, "weight_decay")) == (1.0, 0.0)


def test_first_group_is_that_of_most_parameters():
    """What an objective learns takes its settings from there."""
    net = nn.Sequential(nn.BatchNorm2d(2), nn.Conv2d(2, 2, 3))
    first = parameter_groups(net, TrainSpec(decayed="kernels", weight_decay=0.5))[0]
    assert (first["lr_factor"], first["weight_decay"]) == (1.0, 0.5)


def test_optimizer_begins_with_the_rate_of_every_group(net):
    optimizer = make_optimizer(net, TrainSpec(lr=0.5), CPU)
    assert sorted({group["lr"] for group in optimizer.param_groups}) == [0.05, 0.5]


@pytest.mark.parametrize(("momentum", "nesterov"), [(0.5, True), (0.0, False)])
def test_momentum_is_that_of_the_recipe(net, momentum, nesterov):
    optimizer = make_optimizer(net, TrainSpec(momentum=momentum, nesterov=nesterov), CPU)
    assert optimizer.defaults["momentum"] == momentum
    assert optimizer.defaults["nesterov"] is nesterov


@pytest.mark.parametrize(("name", "decays"), [("fc.method.shift", True), ("fc.weight", False)])
def test_shift_of_a_linear_layer_decays_by_reactnets_rule(name, decays):
    parameter = nn.Parameter(torch.zeros(4))
    assert is_decayed(name, parameter, TrainSpec(decayed="kernels")) == decays


def test_kernels_of_one_dimension_are_none_by_reactnets_rule():
    parameter = nn.Parameter(torch.zeros(2, 2, 3))
    assert not is_decayed("features.weight", parameter, TrainSpec(decayed="kernels"))
