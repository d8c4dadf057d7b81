"""The three calls a training loop owes to the methods inside a model."""

import torch
from torch import nn

from surge.layers import BinaryLinear
from surge.layers.hooks import binary_layers, extra_loss, on_epoch, on_step


def test_binary_layers_are_found_once_with_their_names():
    shared = BinaryLinear(4, 4)
    model = nn.Sequential(nn.Linear(4, 4), shared, nn.ReLU(), shared, BinaryLinear(4, 2))
    assert [name for name, _ in binary_layers(model)] == ["1", "4"]


def test_on_epoch_reaches_every_method():
    model = nn.Sequential(BinaryLinear(4, 4, method="recu"), BinaryLinear(4, 2, method="irnet"))
    on_epoch(model, 5, 10)
    assert model[0].method.tau < 1
    torch.testing.assert_close(model[1].method.t, torch.tensor(1.0))


def test_on_step_clamps_only_where_the_method_does():
    model = nn.Sequential(BinaryLinear(4, 4, method="bnn"), BinaryLinear(4, 2, method="bireal"))
    with torch.no_grad():
        for layer in model:
            layer.weight.fill_(3)
    on_step(model)
    assert model[0].weight.eq(1).all() and model[1].weight.eq(3).all()


def test_extra_loss_is_none_where_no_method_has_one():
    assert extra_loss(nn.Sequential(BinaryLinear(4, 4))) is None


def test_extra_loss_is_the_sum_over_methods():
    model = nn.Sequential(BinaryLinear(4, 4), BinaryLinear(4, 4), BinaryLinear(4, 4))
    for layer, value in zip(model, (None, 1.5, 2.0), strict=True):
        term = None if value is None else torch.tensor(value)
        layer.method.extra_loss = lambda term=term: term
    assert extra_loss(model) == 3.5
