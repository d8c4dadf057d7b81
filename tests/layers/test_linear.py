"""A binary linear layer is torch's linear layer of binarised operands."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from surge.layers import BinaryLinear


def pm(x):
    """Sign by hand."""
    return torch.where(x >= 0, 1.0, -1.0)


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("shape", [(5,), (3, 5), (2, 3, 5), (0, 5)])
def test_linear_is_the_float_layer_of_signs(shape, bias):
    layer, x = BinaryLinear(5, 4, bias=bias), torch.randn(shape)
    torch.testing.assert_close(layer(x), F.linear(pm(x), pm(layer.weight), layer.bias))


def test_linear_gradients_are_those_of_the_float_layer():
    layer, x = BinaryLinear(5, 4), torch.randn(2, 3, 5, requires_grad=True)
    signs = pm(x.detach()).requires_grad_()
    weight = pm(layer.weight.detach()).requires_grad_()
    grad = torch.randn(2, 3, 4)
    layer(x).backward(grad)
    F.linear(signs, weight).backward(grad)
    torch.testing.assert_close(x.grad, signs.grad * (x.abs() <= 1))
    torch.testing.assert_close(layer.weight.grad, weight.grad)
    torch.testing.assert_close(layer.bias.grad, grad.sum((0, 1)))


def test_linear_is_built_like_the_float_layer():
    torch.manual_seed(3)
    plain = nn.Linear(5, 4)
    torch.manual_seed(3)
    binary = BinaryLinear(5, 4, method="recu")
    assert isinstance(binary, nn.Linear)
    assert torch.equal(binary.weight, plain.weight) and torch.equal(binary.bias, plain.bias)


def test_linear_state_dict_is_the_float_one_plus_the_method():
    plain = nn.Linear(5, 4)
    layer = BinaryLinear(5, 4, method="recu")
    assert set(layer.state_dict()) == {*plain.state_dict(), "method.alpha", "method.tau"}
    layer.load_state_dict(plain.state_dict(), strict=True)
    assert torch.equal(layer.weight, plain.weight)


def test_linear_geometry_and_repr():
    layer = BinaryLinear(5, 4, bias=False, method="irnet")
    g = layer.geometry
    assert (g.kind, g.out_features, g.in_features, g.kernel_size) == ("linear", 4, 5, ())
    assert "in_features=5, out_features=4, bias=False, method=irnet (1/1 bit)" in repr(layer)


def test_linear_follows_device_and_dtype_arguments():
    layer = BinaryLinear(5, 4, method="reactnet", dtype=torch.float64)
    y = layer(torch.randn(2, 5, dtype=torch.float64))
    assert y.dtype == torch.float64
    assert BinaryLinear(5, 4, method="recu", device="meta").method.alpha.device.type == "meta"
