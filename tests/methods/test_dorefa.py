"""DoReFa-Net against methods.md B7, in NumPy."""

import numpy as np
import pytest
import torch
from torch import nn

from surge import functional
from surge.errors import ConfigError
from surge.layers import BinaryConv2d, BinaryEmbedding, BinaryLinear
from tests.methods.reference import CASES, check, check_packed, inside, make, sign, sign_input


def one_bit_rule(w):
    return np.abs(w).mean() * sign(w), lambda g: g


def few_bit_rule(bits):
    def rule(w):
        levels, t = 2**bits - 1, np.tanh(w)
        peak = np.unravel_index(np.abs(t).argmax(), t.shape)
        largest = np.abs(t[peak])
        w_b = 2 * np.round(levels * (t / (2 * largest) + 0.5)) / levels - 1

        def back(g):
            # u = t / (2 m) + 1/2 and w_b ~ 2 u - 1, so dL/dt = g / m, less what the maximum takes.
            to_t = g / largest
            to_t[peak] -= sign(t[peak]) * (g * t).sum() / largest**2
            return to_t * (1 - t**2)

        return w_b, back

    return rule


def unit_rule(bits):
    levels = 2**bits - 1
    return lambda x: (
        np.round(levels * np.clip(x, 0, 1)) / levels,
        lambda g: g * ((x >= 0) & (x <= 1)),
    )


def real_rule(v):
    return v, lambda g: g


@pytest.mark.parametrize("case", CASES)
def test_dorefa_one_bit_equals_numpy(case):
    check(case, "dorefa", weight_rule=one_bit_rule, input_rule=sign_input(inside))


@pytest.mark.parametrize("bits", [2, 4, 8])
@pytest.mark.parametrize("case", CASES)
def test_dorefa_few_bits_equal_numpy(case, bits):
    check(
        case,
        "dorefa",
        {"weight_bits": bits, "input_bits": bits},
        weight_rule=few_bit_rule(bits),
        input_rule=unit_rule(bits),
    )


@pytest.mark.parametrize("case", ["conv", "linear"])
def test_dorefa_one_four_equals_numpy(case):
    check(case, "dorefa", {"input_bits": 4}, weight_rule=one_bit_rule, input_rule=unit_rule(4))


@pytest.mark.parametrize("case", ["conv", "linear"])
def test_dorefa_unit_inputs_equal_numpy(case):
    check(case, "dorefa", {"unit_inputs": True}, weight_rule=one_bit_rule, input_rule=unit_rule(1))


@pytest.mark.parametrize("case", ["conv", "linear"])
def test_dorefa_real_weights_equal_numpy(case):
    check(case, "dorefa", {"weight_bits": 32}, weight_rule=real_rule, input_rule=sign_input(inside))


@pytest.mark.parametrize("case", ["conv", "linear"])
def test_dorefa_real_inputs_equal_numpy(case):
    check(case, "dorefa", {"input_bits": 32}, weight_rule=one_bit_rule, input_rule=real_rule)


def test_dorefa_tanh_normalisation_passes_gradcheck():
    def primitive(w):
        t = torch.tanh(w)
        return t / t.abs().max()

    w = torch.randn(3, 5, dtype=torch.double, requires_grad=True)
    assert torch.autograd.gradcheck(primitive, (w,))
    layer = BinaryLinear(5, 3, bias=False, method="dorefa", method_options={"weight_bits": 4})
    grad = torch.randn(3, 5, dtype=torch.double)
    (expected,) = torch.autograd.grad(primitive(w), w, grad)
    (actual,) = torch.autograd.grad(layer.method.binarize_weight(w), w, grad)
    torch.testing.assert_close(actual, expected)


@pytest.mark.parametrize(
    ("options", "zero"),
    [
        ({}, [True, False, False, False, False, True]),
        ({"input_bits": 4}, [True, True, False, False, False, True]),
        ({"unit_inputs": True}, [True, True, False, False, False, True]),
        ({"input_bits": 32}, [False] * 6),
    ],
)
def test_dorefa_mask_says_where_the_input_gradient_is_zero(options, zero):
    layer = BinaryLinear(6, 1, bias=False, method="dorefa", method_options=options)
    x = torch.tensor([-1.5, -1.0, 0.0, 0.3, 1.0, 1.5], requires_grad=True)
    layer.method.binarize(x).sum().backward()
    assert layer.method.surrogate_is_zero(x).tolist() == zero
    assert x.grad.eq(0).tolist() == zero


@pytest.mark.parametrize("bits", [1, 2, 4, 8, 16])
@pytest.mark.parametrize("case", CASES)
def test_dorefa_packed_weight_reproduces_the_layer(case, bits):
    layer, values, scale = check_packed(case, "dorefa", {"weight_bits": bits})
    levels = 2**bits - 1
    assert values.abs().max() == levels
    assert values.remainder(2).eq(1).all()
    expected = layer.weight.abs().mean() if bits == 1 else torch.tensor(1 / levels)
    torch.testing.assert_close(scale, expected.expand_as(scale))


@pytest.mark.parametrize("bits", [1, 4])
def test_dorefa_packed_weight_with_unit_inputs(bits):
    options = {"input_bits": bits, "unit_inputs": True}
    check_packed("conv", "dorefa", options, input_rule=unit_rule(bits))


def test_dorefa_real_weight_is_packed_as_it_is():
    layer, _ = make("conv", "dorefa", {"weight_bits": 32})
    values, scale = layer.packed_weight()
    assert torch.equal(values, layer.weight) and scale.eq(1).all()


def test_dorefa_scale_is_one_number_for_the_layer():
    layer = BinaryEmbedding(5, 3, method="dorefa")
    expected = layer.weight.abs().mean() * functional.sign(layer.weight)
    torch.testing.assert_close(layer(torch.arange(5)), expected)


def test_dorefa_layer_of_zeros_is_finite():
    layer = BinaryLinear(3, 2, bias=False, method="dorefa", method_options={"weight_bits": 2})
    torch.nn.init.zeros_(layer.weight)
    layer(torch.randn(4, 3)).sum().backward()
    assert layer.weight.grad.isfinite().all()


@pytest.mark.parametrize(
    ("options", "bits", "text"),
    [
        ({}, (1, 1), "dorefa (1/1 bit)"),
        ({"unit_inputs": True}, (1, 1), "dorefa (1/1 bit), inputs 0 and 1"),
        ({"input_bits": 4}, (1, 4), "dorefa (1/4 bit)"),
        ({"weight_bits": 4, "input_bits": 4, "unit_inputs": True}, (4, 4), "dorefa (4/4 bit)"),
        ({"weight_bits": 32, "input_bits": 2}, (32, 2), "dorefa (32/2 bit)"),
    ],
)
def test_dorefa_reports_its_bits(options, bits, text):
    method = BinaryConv2d(2, 2, 3, method="dorefa", method_options=options).method
    assert method.bits == bits and type(method).bits == (1, 1)
    assert method.describe() == text


def test_dorefa_real_inputs_leave_nothing_to_compensate():
    real = BinaryLinear(3, 2, method="dorefa", method_options={"input_bits": 32}).method
    assert "real" in real.not_compensable
    assert not BinaryLinear(3, 2, method="dorefa").method.not_compensable


@pytest.mark.parametrize("option", ["weight_bits", "input_bits"])
@pytest.mark.parametrize("bits", [0, 17, 31, -1, 1.5, "4"])
def test_dorefa_rejects_bits(option, bits):
    with pytest.raises(ConfigError, match=rf"{option}: .*from 1 to 16.* 32 keeps"):
        BinaryLinear(3, 2, method="dorefa", method_options={option: bits})


def test_dorefa_rejects_unit_inputs_that_are_real():
    with pytest.raises(ConfigError, match="needs quantised inputs"):
        options = {"input_bits": 32, "unit_inputs": True}
        BinaryLinear(3, 2, method="dorefa", method_options=options)


@pytest.mark.parametrize("case", CASES)
def test_dorefa_keeps_the_size_of_weights_if_asked(case):
    """The maximum multiplies again, as a constant, in the forward and in the backward."""

    def rule(w):
        w_b, back = few_bit_rule(4)(w)
        largest = np.abs(np.tanh(w)).max()
        return largest * w_b, lambda g: back(largest * g)

    options = {"weight_bits": 4, "keeps_size": True}
    check(case, "dorefa", options, weight_rule=rule, input_rule=sign_input(inside))
    layer, values, scale = check_packed(case, "dorefa", options)
    assert torch.equal(values, layer.train().packed_weight()[0]) and values.abs().max() == 15
    largest = layer.weight.detach().tanh().abs().max()
    torch.testing.assert_close(scale, (largest / 15).expand_as(scale))
    plain = BinaryLinear(4, 2, method="dorefa", method_options={"keeps_size": True})
    assert not plain.method.keeps_size  # one bit has a scale of its own


def test_dorefa_few_bits_of_a_layer_of_zeros_have_finite_gradients():
    layer = BinaryLinear(6, 5, method="dorefa", method_options={"weight_bits": 4, "input_bits": 4})
    nn.init.zeros_(layer.weight)
    layer(torch.rand(3, 6, requires_grad=True)).sum().backward()
    assert layer.weight.grad.abs().max() < 100
