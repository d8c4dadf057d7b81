"""The three calls a training loop owes to the methods inside a model."""

import pytest
import torch
from torch import nn
from torch.nn.utils import parametrizations, prune
from torch.utils.checkpoint import checkpoint

import surge
from surge.errors import ConfigError, UnsupportedLayerError
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


def test_extra_loss_is_zero_where_no_method_has_one():
    assert extra_loss(nn.Sequential(BinaryLinear(4, 4))) == 0


def test_extra_loss_is_the_sum_over_methods():
    model = nn.Sequential(BinaryLinear(4, 4), BinaryLinear(4, 4), BinaryLinear(4, 4))
    for layer, value in zip(model, (None, 1.5, 2.0), strict=True):
        term = None if value is None else torch.tensor(value)
        layer.method.extra_loss = lambda weight, term=term: term
    assert extra_loss(model) == 3.5


@pytest.mark.parametrize("method", ["bonn", "rbonn", "ida"])
def test_losses_of_the_weight_reach_it_however_the_layer_ran(method):
    gradients = []
    for run in (None, False, True, "not at all"):
        torch.manual_seed(0)
        layer = BinaryLinear(8, 8, method=method)
        on_epoch(layer, 0, 4)
        x = torch.randn(4, 8, requires_grad=True)
        if run is None:
            layer(x)
        elif run != "not at all":
            checkpoint(layer, x, use_reentrant=run)
        extra_loss(layer).backward()
        gradients.append(layer.weight.grad)
    assert all(gradient.equal(gradients[0]) for gradient in gradients) and gradients[0].any()


@pytest.mark.parametrize("method", ["rad", "bonn", "rbonn", "ida"])
def test_a_layer_that_is_left_out_of_a_step_breaks_nothing(method):
    net = nn.ModuleList(BinaryLinear(8, 8, method=method) for _ in range(2))
    on_epoch(net, 0, 4)
    for both in (True, False):
        y = net[0](torch.randn(4, 8))
        y = net[1](y) if both else y
        (y.square().mean() + extra_loss(net)).backward()
        on_step(net)


def test_a_loss_of_the_inputs_that_reentrant_checkpointing_hides_is_refused():
    layer = BinaryLinear(8, 8, method="rad")
    on_epoch(layer, 0, 4)
    x = torch.randn(4, 8, requires_grad=True)
    checkpoint(layer, x, use_reentrant=True)
    with pytest.raises(ConfigError, match="use_reentrant=False"):
        extra_loss(layer)
    checkpoint(layer, x, use_reentrant=False)
    assert extra_loss(layer).requires_grad


@pytest.mark.parametrize("method", surge.list_methods())
def test_schedules_end_where_training_goes_on(method):
    torch.manual_seed(0)
    layer = BinaryLinear(8, 4, method=method)
    on_epoch(layer, 9, 5)
    assert layer(torch.randn(4, 8)).isfinite().all()


@pytest.mark.parametrize(("epoch", "epochs"), [(0, 0), (-1, 5)])
def test_epochs_that_cannot_be_are_refused(epoch, epochs):
    with pytest.raises(ConfigError, match="epochs count from 0"):
        on_epoch(BinaryLinear(4, 4, method="recu"), epoch, epochs)


@pytest.mark.parametrize("method", ["bnn", "xnor"])
@pytest.mark.parametrize("make", [parametrizations.weight_norm, prune.identity])
def test_on_step_refuses_a_weight_that_would_lose_what_it_does(method, make):
    model = nn.Sequential(BinaryLinear(4, 4, method=method))
    arguments = ("weight",) if make is prune.identity else ()
    make(model[0], *arguments)
    with pytest.raises(UnsupportedLayerError, match=f'{method} changes the weight of "0".*lost'):
        on_step(model)


def test_on_step_goes_on_where_a_method_leaves_the_weight_alone():
    model = nn.Sequential(BinaryLinear(4, 4, method="dsq"))
    parametrizations.weight_norm(model[0])
    with torch.no_grad():
        model[0].method.weight_shape.fill_(5)
    on_step(model)
    assert model[0].method.weight_shape < 1
