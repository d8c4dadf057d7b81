"""Bi-Real Net against methods.md B3, in NumPy."""

import numpy as np
import pytest
import torch

from surge.errors import ConfigError
from surge.layers import BinaryConv2d, BinaryLinear
from tests.methods.reference import (
    CASES,
    check,
    check_packed,
    inside,
    per_filter_mean,
    sign,
    sign_input,
    triangle,
)


def weight_rule(w):
    return per_filter_mean(np.abs(w)) * sign(w), lambda g: g * inside(w)


def magnitude_aware_rule(w):
    alpha = per_filter_mean(np.abs(w))
    return alpha * sign(w), lambda g: g * alpha * inside(w)


@pytest.mark.parametrize("case", CASES)
def test_bireal_equals_numpy(case):
    check(case, "bireal", weight_rule=weight_rule, input_rule=sign_input(triangle))


@pytest.mark.parametrize("case", ["conv", "linear"])
def test_bireal_magnitude_aware_equals_numpy(case):
    check(
        case,
        "bireal",
        {"magnitude_aware": True},
        weight_rule=magnitude_aware_rule,
        input_rule=sign_input(triangle),
    )


def test_bireal_gradients_at_exactly_one():
    layer = BinaryLinear(3, 1, bias=False, method="bireal")
    with torch.no_grad():
        layer.weight.copy_(torch.tensor([[1.0, -1.0, 1.25]]))
    x = torch.tensor([[1.0, -1.0, 0.25]], requires_grad=True)
    layer(x).sum().backward()
    assert layer.weight.grad.tolist() == [[1, -1, 0]]
    assert x.grad[0, :2].tolist() == [0, 0] and x.grad[0, 2] != 0
    assert layer.method.surrogate_is_zero(x).tolist() == [[True, True, False]]


@pytest.mark.parametrize("case", CASES)
def test_bireal_packed_weight_reproduces_the_layer(case):
    layer, values, scale = check_packed(case, "bireal")
    assert set(values.unique().tolist()) == {-1, 1}
    torch.testing.assert_close(scale, layer.weight.flatten(1).abs().mean(1))


def test_bireal_zero_filter_gives_zeros():
    layer = BinaryLinear(3, 2, bias=False, method="bireal")
    torch.nn.init.zeros_(layer.weight)
    assert layer(torch.randn(4, 3)).eq(0).all()


def test_bireal_weights_are_drawn_as_those_of_a_float_layer():
    torch.manual_seed(3)
    plain = torch.nn.Conv2d(4, 6, 3).weight
    torch.manual_seed(3)
    layer = BinaryConv2d(4, 6, 3, method="bireal")
    assert torch.equal(layer.weight, plain) and (plain < 0).any()


def test_bireal_names_a_misspelt_option():
    with pytest.raises(ConfigError, match='Did you mean "magnitude_aware"'):
        BinaryLinear(3, 2, method="bireal", method_options={"magnitude_awar": True})
