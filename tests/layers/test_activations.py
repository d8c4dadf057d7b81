"""RSign and RPReLU against their formulas, in NumPy."""

import numpy as np
import pytest
import torch

from surge.layers import RPReLU, RSign

SHAPES = [(5, 3), (2, 3, 4), (2, 3, 4, 5)]


def channels(vector, x):
    return vector.detach().numpy().reshape(1, -1, *(1,) * (x.ndim - 2))


def over_channels(values):
    return values.sum(axis=(0, *range(2, values.ndim)))


def randomise(module):
    for parameter in module.parameters():
        torch.nn.init.normal_(parameter, std=0.5)
    return module.double()


@pytest.mark.parametrize("shape", SHAPES)
def test_rsign_equals_numpy(shape):
    rsign, x = randomise(RSign(3)), torch.randn(shape, dtype=torch.double, requires_grad=True)
    grad = torch.randn(shape, dtype=torch.double)
    y = rsign(x)
    y.backward(grad)
    z = x.detach().numpy() + channels(rsign.shift, x)
    expected = grad.numpy() * np.maximum(0, 2 - 2 * np.abs(z))
    assert np.array_equal(y.detach().numpy(), np.where(z >= 0, 1.0, -1.0))
    np.testing.assert_allclose(x.grad.numpy(), expected)
    np.testing.assert_allclose(rsign.shift.grad.numpy(), over_channels(expected))


@pytest.mark.parametrize("shape", SHAPES)
def test_rprelu_equals_numpy(shape):
    rprelu, x = randomise(RPReLU(3)), torch.randn(shape, dtype=torch.double, requires_grad=True)
    grad = torch.randn(shape, dtype=torch.double)
    y = rprelu(x)
    y.backward(grad)
    moved = x.detach().numpy() + channels(rprelu.shift_in, x)
    slope = np.where(moved > 0, 1.0, channels(rprelu.slope, x))
    to_input = grad.numpy() * slope
    np.testing.assert_allclose(y.detach().numpy(), moved * slope + channels(rprelu.shift_out, x))
    np.testing.assert_allclose(x.grad.numpy(), to_input)
    np.testing.assert_allclose(rprelu.shift_in.grad.numpy(), over_channels(to_input))
    np.testing.assert_allclose(rprelu.shift_out.grad.numpy(), over_channels(grad.numpy()))
    negative = np.minimum(moved, 0) * grad.numpy()
    np.testing.assert_allclose(rprelu.slope.grad.numpy(), over_channels(negative))


def test_rsign_starts_as_sign_and_rprelu_as_prelu():
    x = torch.randn(2, 3, 4, 4)
    assert torch.equal(RSign(3)(x), torch.where(x >= 0, 1.0, -1.0))
    torch.testing.assert_close(RPReLU(3)(x), torch.where(x > 0, x, 0.25 * x))


def test_rsign_of_zero_is_plus_one():
    assert RSign(1)(torch.tensor([[0.0], [-0.0]])).tolist() == [[1], [1]]


def test_activations_have_one_value_per_channel():
    assert {n: p.shape for n, p in RPReLU(3).named_parameters()} == {
        "shift_in": (3,),
        "slope": (3,),
        "shift_out": (3,),
    }
    assert {n: p.shape for n, p in RSign(3).named_parameters()} == {"shift": (3,)}


@pytest.mark.parametrize("kind", [RSign, RPReLU])
def test_short_activations_stay_short(kind):
    layer, x = kind(3), torch.randn(2, 3, 4, 4).bfloat16().requires_grad_()
    torch.nn.init.normal_(next(layer.parameters()))
    with torch.autocast("cpu", torch.bfloat16):
        y = layer(x)
    y.float().sum().backward()
    assert y.dtype == x.grad.dtype == torch.bfloat16
    assert all(p.grad.dtype == torch.float32 for p in layer.parameters())
    near = layer(x.detach().float())
    assert (y.float() - near).abs().mean() < 0.02 * near.abs().mean() + 0.02
