"""A binary convolution is torch's convolution of binarised operands, and nothing else."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from surge.errors import ConfigError, UnsupportedLayerError
from surge.layers import BinaryConv1d, BinaryConv2d

PLAIN = {
    "default": {},
    "bias-off": {"bias": False},
    "stride": {"stride": 2},
    "padding": {"padding": 1},
    "same": {"padding": "same"},
    "valid": {"padding": "valid"},
    "same-dilated": {"padding": "same", "dilation": 2},
    "dilation": {"dilation": 2, "padding": 2},
    "groups": {"groups": 2, "padding": 1},
    "all": {"groups": 2, "stride": 2, "padding": 3, "dilation": 2, "bias": True},
}
ONLY_2D = {
    "uneven": {"stride": (2, 1), "padding": (0, 2), "dilation": (1, 2)},
}
KINDS = {1: (BinaryConv1d, nn.Conv1d, (9,)), 2: (BinaryConv2d, nn.Conv2d, (9, 8))}


def pm(x):
    """Sign by hand."""
    return torch.where(x >= 0, 1.0, -1.0)


def pair(dims, options, method="bnn"):
    """Return a binary layer, the float layer with its sign as weight, and an input."""
    binary_class, float_class, size = KINDS[dims]
    binary = binary_class(4, 6, 3, method=method, **options)
    plain = float_class(4, 6, 3, **options)
    with torch.no_grad():
        plain.weight.copy_(pm(binary.weight))
        if binary.bias is not None:
            plain.bias.copy_(binary.bias)
    return binary, plain, torch.randn(2, 4, *size)


CASES = [(dims, options) for dims in KINDS for options in PLAIN.values()]
CASES += [(2, options) for options in ONLY_2D.values()]
NAMES = [f"{dims}d-{name}" for dims in KINDS for name in PLAIN] + [f"2d-{n}" for n in ONLY_2D]
every = pytest.mark.parametrize(("dims", "options"), CASES, ids=NAMES)


@every
def test_conv_is_the_float_convolution_of_signs(dims, options):
    binary, plain, x = pair(dims, options)
    torch.testing.assert_close(binary(x), plain(pm(x)))


@every
def test_conv_gradients_are_those_of_the_float_convolution(dims, options):
    binary, plain, x = pair(dims, options)
    x.requires_grad_()
    signs = pm(x.detach()).requires_grad_()
    y, expected = binary(x), plain(signs)
    grad = torch.randn_like(y)
    y.backward(grad)
    expected.backward(grad)
    torch.testing.assert_close(x.grad, signs.grad * (x.abs() <= 1))
    torch.testing.assert_close(binary.weight.grad, plain.weight.grad)
    if binary.bias is not None:
        torch.testing.assert_close(binary.bias.grad, plain.bias.grad)


@every
def test_conv_geometry_gives_the_float_output_shape(dims, options):
    binary, plain, x = pair(dims, options)
    g = binary.geometry
    assert (g.kind, g.in_features, g.out_features) == ("conv", 4, 6)
    assert g.groups == options.get("groups", 1)
    resolved = (F.conv1d if dims == 1 else F.conv2d)(
        x, plain.weight, plain.bias, g.stride, g.padding, g.dilation, g.groups
    )
    assert torch.equal(resolved, plain(x))


@pytest.mark.parametrize("dims", KINDS)
@pytest.mark.parametrize("method", ["bnn", "bireal", "xnor", "dorefa", "irnet", "reactnet"])
def test_conv_accepts_an_unbatched_input(dims, method):
    binary, _, x = pair(dims, {"padding": 1}, method)
    torch.testing.assert_close(binary(x[0]), binary(x)[0])


@pytest.mark.parametrize("dims", KINDS)
def test_conv_zero_padding_is_zero_not_a_bit(dims):
    binary, _, x = pair(dims, {"padding": 1, "bias": False})
    with torch.no_grad():
        binary.weight.fill_(1)
    y = binary(torch.ones_like(x))
    corner = 4 * 2**dims  # of 3 ** dims taps, only 2 ** dims lie inside
    assert y[0, 0].flatten()[0] == corner and y.max() == 4 * 3**dims


@pytest.mark.parametrize("dims", KINDS)
def test_conv_is_built_like_the_float_layer(dims):
    binary_class, float_class, _ = KINDS[dims]
    torch.manual_seed(3)
    plain = float_class(4, 6, 3, padding=1)
    torch.manual_seed(3)
    binary = binary_class(4, 6, 3, padding=1, method="recu")
    assert isinstance(binary, float_class)
    assert torch.equal(binary.weight, plain.weight) and torch.equal(binary.bias, plain.bias)


@pytest.mark.parametrize(
    ("method", "extra"),
    [
        ("bnn", set()),
        ("recu", {"method.alpha", "method.tau"}),
        ("irnet", {"method.k", "method.t"}),
        ("reactnet", {"method.shift"}),
    ],
)
@pytest.mark.parametrize("bias", [True, False])
def test_conv_state_dict_is_the_float_one_plus_the_method(method, extra, bias):
    layer = BinaryConv2d(4, 6, 3, bias=bias, method=method)
    assert set(layer.state_dict()) == set(nn.Conv2d(4, 6, 3, bias=bias).state_dict()) | extra


@pytest.mark.parametrize("method", ["bnn", "recu", "reactnet"])
@pytest.mark.parametrize("dims", KINDS)
def test_frozen_conv_gives_its_input_the_gradient_of_one_that_learns(dims, method):
    layer_class, _, size = KINDS[dims]
    layer = layer_class(4, 6, 3, method=method)
    x = torch.randn(2, 4, *size)
    found = []
    for learns in (True, False):
        layer.requires_grad_(learns)
        leaf = x.clone().requires_grad_()
        layer(leaf).square().sum().backward()
        found.append(leaf.grad)
    assert torch.equal(*found)


@pytest.mark.parametrize("method", ["bnn", "recu", "irnet", "reactnet"])
def test_conv_loads_a_float_state_dict_strictly(method):
    plain, layer = nn.Conv2d(4, 6, 3), BinaryConv2d(4, 6, 3, method=method)
    fresh = {name: value.clone() for name, value in layer.method.state_dict().items()}
    layer.load_state_dict(plain.state_dict(), strict=True)
    assert torch.equal(layer.weight, plain.weight) and torch.equal(layer.bias, plain.bias)
    for name, value in layer.method.state_dict().items():
        assert torch.equal(value, fresh[name])


def test_conv_still_misses_what_a_float_layer_would_miss():
    with pytest.raises(RuntimeError, match="bias"):
        BinaryConv2d(4, 6, 3).load_state_dict({"weight": torch.zeros(6, 4, 3, 3)})


@pytest.mark.parametrize("mode", ["reflect", "replicate", "circular"])
@pytest.mark.parametrize("dims", KINDS)
def test_conv_refuses_other_padding_modes(dims, mode):
    with pytest.raises(UnsupportedLayerError, match=f'padding_mode="{mode}".*only "zeros"'):
        KINDS[dims][0](4, 6, 3, padding=1, padding_mode=mode)


@pytest.mark.parametrize("kernel", [2, (3, 4)])
def test_conv_refuses_same_padding_of_an_even_kernel(kernel):
    with pytest.raises(UnsupportedLayerError, match=r'padding="same".*odd kernel'):
        BinaryConv2d(4, 6, kernel, padding="same")


def test_conv_allows_same_padding_of_an_even_kernel_with_even_dilation():
    layer = BinaryConv2d(4, 6, 2, padding="same", dilation=2)
    assert layer.geometry.padding == (1, 1)
    assert layer(torch.randn(1, 4, 7, 7)).shape == (1, 6, 7, 7)


def test_conv_names_an_unknown_method_and_option():
    with pytest.raises(ConfigError, match='Unknown method "bireel"'):
        BinaryConv2d(4, 6, 3, method="bireel")
    with pytest.raises(ConfigError, match='no option "magnitude"'):
        BinaryConv2d(4, 6, 3, method="bireal", method_options={"magnitude": True})


def test_conv_repr_names_shape_and_method():
    text = repr(BinaryConv2d(4, 6, 3, stride=2, bias=False, method="bireal"))
    assert text.startswith("BinaryConv2d(")
    assert "4, 6, kernel_size=(3, 3), stride=(2, 2), bias=False" in text
    assert "method=bireal (1/1 bit)" in text


def test_conv_output_scale_comes_before_the_bias():
    layer, x = BinaryConv2d(4, 6, 3, method="recu"), torch.randn(2, 4, 5, 5)
    without = F.conv2d(pm(x), layer.method.binarize_weight(layer.weight))
    expected = without * layer.method.alpha.view(-1, 1, 1) + layer.bias.view(-1, 1, 1)
    torch.testing.assert_close(layer(x), expected)


def test_conv_packed_scale_is_one_number_per_channel():
    for method in ("bnn", "dorefa", "recu", "bireal"):
        values, scale = BinaryConv2d(4, 6, 3, method=method).packed_weight()
        assert values.shape == (6, 4, 3, 3) and scale.shape == (6,)
        assert scale.is_contiguous() and not values.requires_grad


def test_conv_is_born_in_training_mode_with_its_method():
    layer = BinaryConv2d(4, 6, 3, method="recu")
    assert layer.training and layer.method.training
    assert not layer.eval().method.training


@pytest.mark.parametrize("method", ["xnor", "bireal", "reactnet"])
@pytest.mark.parametrize("compiled", [False, True])
def test_inputs_that_autocast_has_made_low_already(method, compiled):
    torch.manual_seed(0)
    layer = BinaryConv2d(4, 4, 3, padding=1, method=method)
    low = torch.randn(2, 4, 5, 5).bfloat16().requires_grad_()
    run = torch.compile(layer, backend="aot_eager") if compiled else layer
    with torch.autocast("cpu", torch.bfloat16):
        y = run(low)
    y.float().sum().backward()
    assert y.dtype == low.grad.dtype == torch.bfloat16
    expected = layer(low.detach().float())
    assert (y.float() - expected).norm() < 0.01 * expected.norm()
