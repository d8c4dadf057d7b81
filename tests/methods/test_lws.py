"""LWS-Det's layer against methods.md B17, in NumPy."""

import math

import numpy as np
import pytest
import torch

from surge.errors import ConfigError
from surge.layers import BinaryLinear
from tests.methods.reference import CASES, check_packed, close, compute, make, run, sign, triangle


def search_rule(spread, *, hard):
    """The expected weight of two logits with difference sqrt(2) w / d, and its gradient to w."""

    def rule(w):
        plus = 1 / (1 + np.exp(-math.sqrt(2) * w / spread))
        soft = plus - (1 - plus)
        back = 2 * plus * (1 - plus) * math.sqrt(2) / spread
        return sign(w) if hard else soft, lambda g: g * back

    return rule


def input_rule(x):
    return sign(x), lambda g: g * triangle(x)


def wide(vector, y):
    return vector.reshape(-1, *(1,) * (y.ndim - 2))


@pytest.mark.parametrize("epoch", [None, 0, 4, 5, 9])
@pytest.mark.parametrize("case", CASES)
def test_lws_equals_numpy(case, epoch):
    layer, x = make(case, "lws")
    spread = 1.0
    if epoch is not None:
        layer.method.on_epoch(epoch, 10)
        layer.method.adapt(layer.weight)
        spread = float(layer.weight.detach().numpy().std())
    with torch.no_grad():
        layer.method.alpha.normal_()
    y, input_grad, grad = run(layer, x)
    alpha = wide(layer.method.alpha.detach().numpy(), y)
    expected = compute(
        layer,
        x.numpy(),
        grad.numpy(),
        weight_rule=search_rule(spread, hard=epoch is not None and epoch >= 5),
        input_rule=input_rule,
        factor=alpha,
    )
    close(y, expected.output, 1e-6)  # the spread is kept in float32
    close(layer.weight.grad, expected.weight_grad, 1e-5)
    close(input_grad, expected.input_grad, 1e-6)
    axes = tuple(i for i in range(y.dim()) if i != 1)
    close(layer.method.alpha.grad, (expected.product * grad.numpy()).sum(axis=axes), 1e-5)


def test_lws_evaluates_the_more_likely_weight_with_the_gradient_of_the_search():
    layer, x = make("conv", "lws")
    layer.eval()
    y, _, grad = run(layer, x)
    rule = search_rule(1.0, hard=True)
    alpha = wide(layer.method.alpha.detach().numpy(), y)
    expected = compute(
        layer, x.numpy(), grad.numpy(), weight_rule=rule, input_rule=input_rule, factor=alpha
    )
    close(y, expected.output)
    close(layer.weight.grad, expected.weight_grad, 1e-9)


def test_lws_hands_out_the_weight_of_its_forward_compiled_too():
    layer, x = make("conv", "lws")
    gradients = []
    for forward in (layer, torch.compile(layer, backend="aot_eager", fullgraph=True)):
        loss = forward(x).square().mean() + layer.method.used.pow(3).sum()
        gradients += torch.autograd.grad(loss, layer.weight)
    torch.testing.assert_close(*gradients)
    layer.method.used = None
    layer.eval()(x)
    assert layer.method.used is None  # nothing to hold in evaluation or in an export


def test_lws_takes_spread_and_scales_once_from_the_weights_it_finds():
    layer = BinaryLinear(50, 8, method="lws")
    with torch.no_grad():
        layer.weight.normal_(std=3.0)  # a checkpoint came after the method
    layer.method.on_epoch(0, 10)
    layer.method.adapt(layer.weight)
    assert layer.method.spread.item() == pytest.approx(layer.weight.std().item(), rel=1e-2)
    torch.testing.assert_close(layer.method.alpha.detach(), layer.weight.detach().abs().mean(dim=1))
    held = layer.method.spread.item(), layer.method.alpha.detach().clone()
    with torch.no_grad():
        layer.weight.mul_(2)
    layer.method.adapt(layer.weight)
    assert layer.method.spread.item() == held[0] and torch.equal(layer.method.alpha, held[1])


@pytest.mark.parametrize(("search", "last_soft"), [(0.0, -1), (0.5, 4), (1.0, 9)])
def test_lws_search_takes_its_share_of_the_epochs(search, last_soft):
    layer = BinaryLinear(4, 2, method="lws", method_options={"search": search})
    soft = []
    for epoch in range(10):
        layer.method.on_epoch(epoch, 10)
        soft.append(not bool(layer.method.discrete))
    assert soft == [epoch <= last_soft for epoch in range(10)]


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("case", CASES)
def test_lws_packed_weight_reproduces_the_evaluated_layer(case, training):
    layer, values, scale = check_packed(case, "lws", prepare=lambda layer: layer.train(training))
    assert torch.equal(values, torch.where(layer.weight >= 0, 1.0, -1.0))
    assert torch.equal(scale, layer.method.alpha.detach())
    assert torch.equal(layer.train().packed_weight()[0], values)
    assert set(layer.method.state_dict()) == set(layer.method.dropped)


@pytest.mark.parametrize("search", [-0.1, 1.1])
def test_lws_rejects_a_search_that_is_no_share(search):
    with pytest.raises(ConfigError, match="search="):
        BinaryLinear(4, 2, method="lws", method_options={"search": search})
