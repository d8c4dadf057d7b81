"""TBN against methods.md B8, in NumPy."""

import math

import numpy as np
import pytest
import torch

from surge.errors import ConfigError
from surge.layers import BinaryConv2d, BinaryLinear
from surge.methods.tbn import ternary
from tests.methods.reference import (
    CASES,
    check,
    check_packed,
    close,
    inside,
    per_filter_mean,
    sign,
)


def weight_rule(w):
    alpha = per_filter_mean(np.abs(w))
    return alpha * sign(w), lambda g: g * (1 / w[0].size + alpha * inside(w))


def input_rule(delta):
    def rule(x):
        threshold = delta * np.abs(x).mean(axis=tuple(range(1, x.ndim)), keepdims=True)
        value = np.where(x >= threshold, 1.0, np.where(x <= -threshold, -1.0, 0.0))
        return value, lambda g: g * (np.abs(x) < 1)

    return rule


@pytest.mark.parametrize("delta", [0.4, 0.0, 1.5])
@pytest.mark.parametrize("case", CASES)
def test_tbn_equals_numpy(case, delta):
    check(case, "tbn", {"delta": delta}, weight_rule=weight_rule, input_rule=input_rule(delta))


def test_tbn_default_threshold_is_four_tenths_of_the_mean_magnitude():
    check("conv", "tbn", weight_rule=weight_rule, input_rule=input_rule(0.4))
    layer = BinaryLinear(4, 1, bias=False, method="tbn")
    x = torch.tensor([[1.0, 0.5, -0.39, -0.41], [10.0, 0.0, 0.0, 0.0]])
    values = layer.method.binarize(x)
    threshold = 0.4 * (1 + 0.5 + 0.39 + 0.41) / 4
    assert threshold == pytest.approx(0.23)
    assert values.tolist() == [[1, 1, -1, -1], [1, 0, 0, 0]]


def test_tbn_threshold_is_inclusive_on_both_sides():
    x = torch.tensor([0.5, -0.5, 0.499, -0.499, 0.0, -0.0, math.inf, -math.inf, math.nan])
    values = ternary(x, torch.tensor(0.5))
    assert values[:8].tolist() == [1, -1, 0, 0, 0, 0, 1, -1] and values[8].isnan()


def test_tbn_threshold_does_not_depend_on_the_rest_of_the_batch():
    layer = BinaryConv2d(4, 3, 3, method="tbn")
    x = torch.randn(3, 4, 5, 5) * torch.tensor([1.0, 10.0, 0.1]).view(3, 1, 1, 1)
    values = layer.method.binarize(x)
    for sample, value in zip(x, values, strict=True):
        assert torch.equal(layer.method.binarize(sample[None])[0], value)
        assert torch.equal(layer.method.binarize(sample), value)  # without batch dimension


def test_tbn_input_gradient_stops_at_exactly_one():
    layer = BinaryLinear(4, 2, method="tbn")
    z = torch.tensor([[1.0, -1.0, 0.999, 0.0]], requires_grad=True)
    layer.method.binarize(z).sum().backward()
    assert z.grad.tolist() == [[0, 0, 1, 1]]
    assert torch.equal(layer.method.surrogate_is_zero(z.detach()), z.grad == 0)


def test_tbn_threshold_carries_no_gradient():
    layer = BinaryLinear(4, 2, method="tbn")
    assert not layer.method.threshold(torch.randn(2, 4, requires_grad=True)).requires_grad


@pytest.mark.parametrize("case", CASES)
def test_tbn_packed_weight_reproduces_the_layer(case):
    layer, values, scale = check_packed(case, "tbn", input_rule=input_rule(0.4))
    assert torch.equal(values, torch.where(layer.weight >= 0, 1.0, -1.0))
    close(scale, layer.weight.detach().double().abs().flatten(1).mean(1).numpy(), 1e-6)
    assert not layer.method.state_dict()


def test_tbn_says_that_its_inputs_take_two_bits():
    layer = BinaryConv2d(4, 4, 3, method="tbn")
    assert layer.method.bits == (1, 2) and layer.method.describe() == "tbn (1/2 bit)"


@pytest.mark.parametrize("delta", [-0.1, math.inf, math.nan])
def test_tbn_rejects_a_bad_threshold(delta):
    with pytest.raises(ConfigError, match="delta="):
        BinaryLinear(4, 2, method="tbn", method_options={"delta": delta})


def test_tbn_operator_passes_opcheck():
    torch.library.opcheck(ternary, (torch.randn(3, 2, requires_grad=True), torch.tensor(0.3)))
