"""XNOR-Net against methods.md B6, in NumPy."""

import numpy as np
import pytest
import torch

from surge.errors import ConfigError
from surge.layers import BinaryConv1d, BinaryConv2d, BinaryEmbedding, BinaryLinear
from tests.methods.reference import (
    CASES,
    Conv2d,
    check,
    check_packed,
    close,
    inside,
    make,
    per_filter_mean,
    sign,
    sign_input,
)


def parts(w):
    centred = w - w.mean(axis=1, keepdims=True)
    alpha = per_filter_mean(np.abs(np.clip(centred, -1, 1)))
    return centred, alpha


def paper_rule(w):
    centred, alpha = parts(w)
    return alpha * sign(centred), lambda g: g * (1 / w[0].size + alpha * inside(centred))


def port_rule(w):
    centred, alpha = parts(w)
    n, bits = w[0].size, sign(centred)

    def back(g):
        shared = bits * per_filter_mean(bits * g)
        return (alpha * inside(centred) * g + shared) * n * (1 - 1 / w.shape[1])

    return alpha * bits, back


def magnitude_map(layer, x):
    """K: mean abs(x) over channels, averaged over the kernel with zeros beyond the border."""
    if isinstance(layer, BinaryLinear):
        return np.abs(x).mean(axis=-1, keepdims=True)
    box = np.full((1, 1, *layer.kernel_size), 1 / np.prod(layer.kernel_size))
    operator = Conv2d(layer.stride, layer.padding, layer.dilation, groups=1)
    return operator.forward(np.abs(x).mean(axis=1, keepdims=True), box)


RULES = {"paper": paper_rule, "port": port_rule}


@pytest.mark.parametrize("gradient", RULES)
@pytest.mark.parametrize("case", CASES)
def test_xnor_equals_numpy(case, gradient):
    check(
        case,
        "xnor",
        {"gradient": gradient},
        weight_rule=RULES[gradient],
        input_rule=sign_input(inside),
        factor=magnitude_map,
        scale=1.0,
    )


@pytest.mark.parametrize("case", CASES)
def test_xnor_without_input_scale_equals_numpy(case):
    check(
        case,
        "xnor",
        {"input_scale": False},
        weight_rule=paper_rule,
        input_rule=sign_input(inside),
    )


def test_xnor_default_is_the_papers_gradient_with_input_scale():
    check(
        "conv",
        "xnor",
        weight_rule=paper_rule,
        input_rule=sign_input(inside),
        factor=magnitude_map,
    )


def test_xnor_input_gradient_passes_at_exactly_one():
    layer = BinaryLinear(2, 1, bias=False, method="xnor", method_options={"input_scale": False})
    with torch.no_grad():
        layer.weight.copy_(torch.tensor([[0.5, -0.5]]))
    x = torch.tensor([[1.0, -1.0], [1.5, -1.5]], requires_grad=True)
    layer(x).sum().backward()
    assert x.grad.tolist() == [[0.5, -0.5], [0, 0]]
    assert layer.method.surrogate_is_zero(x).tolist() == [[False, False], [True, True]]


def test_xnor_leaves_the_latent_weight_as_it_is():
    layer, x = make("conv", "xnor", scale=2.0)
    before = layer.weight.detach().clone()
    layer(x).sum().backward()
    assert torch.equal(layer.weight, before)


def test_xnor_step_takes_back_what_is_further_than_one_from_the_centre():
    layer, _ = make("conv", "xnor", scale=2.0)
    before = layer.weight.detach().clone().numpy()
    layer.method.on_step(layer.weight)
    centred, _ = parts(before)
    close(layer.weight, before - centred + np.clip(centred, -1, 1))
    near = np.abs(centred) <= 1
    assert 0 < near.sum() < near.size
    assert np.array_equal(layer.weight.detach().numpy()[near], before[near])


def test_xnor_input_scale_carries_no_gradient():
    layer = BinaryLinear(4, 3, method="xnor")
    x = torch.randn(2, 4, requires_grad=True)
    assert not layer.method.magnitude_map(x).requires_grad


def test_xnor_map_of_a_constant_image_counts_the_border_as_zeros():
    layer = BinaryConv2d(4, 2, 3, padding=1, method="xnor")
    k = layer.method.magnitude_map(torch.full((1, 4, 3, 3), -9.0))
    torch.testing.assert_close(k[0, 0], torch.tensor([[4.0, 6, 4], [6, 9, 6], [4, 6, 4]]))


def test_xnor_map_is_that_of_the_place_not_of_the_sample():
    layer = BinaryConv2d(4, 2, 3, bias=False, method="xnor")
    x = torch.ones(1, 4, 5, 10)
    x[..., 5:] = -3.0  # mean magnitude 2
    k = layer.method.magnitude_map(x)
    row = torch.tensor([1.0, 1, 1, 5 / 3, 7 / 3, 3, 3, 3])
    torch.testing.assert_close(k[0, 0], row.repeat(3, 1))
    plain = BinaryConv2d(4, 2, 3, bias=False, method="xnor", method_options={"input_scale": False})
    plain.load_state_dict(layer.state_dict())
    torch.testing.assert_close(layer(x), k * plain(x))


def test_xnor_map_works_in_one_dimension_and_without_batch():
    layer = BinaryConv1d(4, 2, 3, stride=2, dilation=2, padding=1, bias=False, method="xnor")
    x = torch.randn(3, 4, 11)
    k = layer.method.magnitude_map(x)
    windows = np.pad(x.abs().mean(1).numpy(), [(0, 0), (1, 1)])
    expected = [[row[i : i + 5 : 2].mean() for i in range(0, 9, 2)] for row in windows]
    close(k[:, 0], np.array(expected, dtype=float), tolerance=1e-6)
    torch.testing.assert_close(layer(x[0]), layer(x)[0])


def test_xnor_map_of_a_sequence_has_one_value_per_row():
    layer = BinaryLinear(4, 3, method="xnor")
    x = torch.randn(2, 5, 4)
    torch.testing.assert_close(layer.method.magnitude_map(x), x.abs().mean(2, keepdim=True))


@pytest.mark.parametrize("case", CASES)
def test_xnor_packed_weight_reproduces_the_layer(case):
    layer, values, scale = check_packed(case, "xnor", factor=magnitude_map)
    centred, alpha = parts(layer.weight.detach().double().numpy())
    assert torch.equal(values, torch.from_numpy(sign(centred)).float())
    close(scale, alpha.flatten(), tolerance=1e-6)


def test_xnor_embedding_is_binary_without_a_map():
    layer = BinaryEmbedding(5, 4, method="xnor")
    rows = layer(torch.arange(5))
    values, scale = layer.packed_weight()
    assert torch.equal(rows, values * scale[:, None])


def test_xnor_operator_passes_opcheck():
    from surge.methods.xnor import xnor_weight

    for port in (False, True):
        torch.library.opcheck(xnor_weight, (torch.randn(3, 2, 2, requires_grad=True), port))


def test_xnor_rejects_an_unknown_gradient():
    with pytest.raises(ConfigError, match=r'gradient="caffe" is not one of'):
        BinaryLinear(4, 2, method="xnor", method_options={"gradient": "caffe"})


def test_xnor_rejects_depthwise_filters():
    with pytest.raises(ConfigError, match="needs at least 2"):
        BinaryConv2d(4, 4, 3, groups=4, method="xnor")
