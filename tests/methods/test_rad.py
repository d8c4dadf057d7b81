"""RAD against methods.md B12, in NumPy."""

import copy

import numpy as np
import pytest
import torch
from torch import nn

import surge
from surge.errors import ConfigError
from surge.layers import BinaryConv2d, BinaryLinear
from surge.recipes import get_recipe
from tests.methods.reference import (
    CASES,
    check,
    check_packed,
    close,
    inside,
    make,
    sign,
    sign_input,
)


def penalty(x):
    """D1 + D2 and their gradient at x; the channels are dimension 1."""
    axes = tuple(d for d in range(x.ndim) if d != 1)
    count = x.size / x.shape[1]
    mean = x.mean(axis=axes, keepdims=True)
    spread = np.sqrt(((x - mean) ** 2).mean(axis=axes, keepdims=True) + 1e-10)
    low = np.maximum(0, np.minimum(2 - mean - spread, 2 + mean - spread))
    high, off = np.maximum(0, spread - 4), mean**2 - spread**2
    value = (low**2).mean() + (high**2).mean() + np.maximum(0, off).mean()
    to_mean = (-2 * low * np.sign(mean) + 2 * mean * (off > 0)) / x.shape[1]
    to_spread = (-2 * low + 2 * high - 2 * spread * (off > 0)) / x.shape[1]
    return value, to_mean / count + to_spread * (x - mean) / (spread * count)


@pytest.mark.parametrize("case", CASES)
def test_rad_binarises_as_bnn(case):
    check(case, "rad", weight_rule=lambda w: (sign(w), lambda g: g), input_rule=sign_input(inside))


@pytest.mark.parametrize("shift", [0.0, 3.0])
@pytest.mark.parametrize("spread", [0.3, 6.0])
@pytest.mark.parametrize("case", ["conv", "linear"])
def test_rad_loss_equals_numpy(case, spread, shift):
    layer, x = make(case, "rad")
    layer.method.on_epoch(0, 65)
    x = (spread * x + shift).requires_grad_()
    layer(x)
    loss = layer.method.extra_loss(layer.weight)
    loss.backward()
    value, gradient = penalty(x.detach().numpy())
    assert value > 0
    close(loss, 2 * value)
    close(x.grad, 2 * gradient)


def test_rad_loss_of_a_sequence_is_per_feature():
    layer = BinaryLinear(6, 5, method="rad").double()
    layer.method.on_epoch(0, 65)
    x = torch.randn(2, 3, 6, dtype=torch.double)
    layer(x)
    close(layer.method.extra_loss(layer.weight), 2 * penalty(x.reshape(6, 6).numpy())[0])


def test_rad_loss_of_a_batch_in_parts_judges_each_by_itself():
    layer, parts = BinaryLinear(6, 5, method="rad").double(), 2
    layer.method.on_epoch(0, 65)
    x = torch.randn(8, 6, dtype=torch.double, requires_grad=True)
    for part in x.chunk(parts):
        layer(part)
        (layer.method.extra_loss(layer.weight) / parts).backward()
    pieces = np.split(x.detach().numpy(), parts)
    expected = np.concatenate([2 / parts * penalty(piece)[1] for piece in pieces])
    close(x.grad, expected)
    whole = 2 * penalty(x.detach().numpy())[1]
    assert np.abs(expected - whole).max() > 0.01 * np.abs(whole).max()


@pytest.mark.parametrize(
    ("epoch", "epochs", "strength"),
    [(0, 65, 2), (59, 65, 2), (60, 65, 0), (64, 65, 0), (553, 600, 2), (554, 600, 0)],
)
def test_rad_strength_at_named_epochs(epoch, epochs, strength):
    layer = BinaryLinear(4, 2, method="rad")
    held = layer.method.active_strength
    assert held == 0  # until an epoch is announced
    layer.method.on_epoch(epoch, epochs)
    assert held is layer.method.active_strength and held == strength


def test_rad_options_set_strength_and_end():
    layer = BinaryLinear(4, 2, method="rad", method_options={"strength": 0.5, "until": 0.25})
    layer.method.on_epoch(2, 8)
    assert layer.method.active_strength == 0
    layer.method.on_epoch(1, 8)
    assert layer.method.active_strength == 0.5


def network():
    torch.manual_seed(0)
    net = nn.Sequential(*(BinaryLinear(6, 6, method="rad") for _ in range(3)))
    surge.on_epoch(net, 0, 10)
    return net


def test_rad_losses_are_averaged_over_layers():
    net, x = network(), torch.randn(4, 6)
    net(x)
    terms = torch.stack([layer.method.extra_loss(layer.weight) for layer in net])
    torch.testing.assert_close(surge.extra_loss(net), terms.mean())


def test_rad_has_no_loss_in_evaluation():
    net = network()
    net(torch.randn(4, 6))
    assert surge.extra_loss(net.eval()) == 0


def test_rad_loss_ends_without_recompiling():
    torch._dynamo.reset()
    layer, x = BinaryLinear(6, 5, method="rad"), torch.randn(4, 6)
    compiled = torch.compile(layer, backend="aot_eager", fullgraph=True)
    layer.method.on_epoch(0, 10)
    compiled(x)
    assert layer.method.extra_loss(layer.weight) > 0
    layer.method.on_epoch(19, 20)
    with torch.compiler.set_stance("fail_on_recompile"):
        compiled(x)
    assert layer.method.extra_loss(layer.weight) == 0


def test_rad_loss_of_half_precision_is_computed_in_float32():
    layer = BinaryConv2d(4, 4, 3, method="rad").bfloat16()
    layer.method.on_epoch(0, 10)
    x = 300 + torch.randn(2, 4, 8, 8).bfloat16()
    layer(x)
    assert layer.method.penalty.dtype == torch.float32
    close(layer.method.penalty, 2 * penalty(x.double().numpy())[0], tolerance=1e-3)


def test_rad_can_be_copied_between_forward_and_backward():
    net = network()
    net(torch.randn(4, 6, requires_grad=True))
    assert surge.extra_loss(copy.deepcopy(net)) == 0
    assert surge.extra_loss(net) > 0


def test_rad_loss_is_no_part_of_the_main_gradient_that_surge_measures():
    squares = []
    for with_loss in (False, True):
        net = network()
        surge.compensate_(net)
        y = net(torch.randn(4, 6, generator=torch.Generator().manual_seed(1)).requires_grad_())
        loss = y.square().sum()
        (loss + surge.extra_loss(net) if with_loss else loss).backward()
        squares.append(net[2].auxiliary.squares("main"))
    assert torch.equal(*squares)


def test_rad_clamps_latent_weights_after_a_step():
    layer = BinaryLinear(4, 2, method="rad")
    nn.init.constant_(layer.weight, 3.0)
    layer.method.on_step(layer.weight)
    assert layer.weight.eq(1).all()


@pytest.mark.parametrize("case", CASES)
def test_rad_packed_weight_reproduces_the_layer(case):
    layer, values, scale = check_packed(case, "rad")
    assert torch.equal(values, torch.where(layer.weight >= 0, 1.0, -1.0)) and scale.eq(1).all()
    assert set(layer.method.state_dict()) == set(layer.method.dropped)


@pytest.mark.parametrize("options", [{"strength": -1.0}, {"until": 1.5}, {"until": -0.1}])
def test_rad_rejects_bad_options(options):
    with pytest.raises(ConfigError, match="strength=.*until="):
        BinaryLinear(4, 2, method="rad", method_options=options)


def test_rad_recipe_lets_the_loss_see_unclamped_values():
    recipe = get_recipe("cifar10-resnet18-rad")
    assert recipe.paper == 90.5 and recipe.model.options == {"activation": "none"}
    assert get_recipe("cifar10-resnet18-rad-surge").surge is not None
