"""The gradient of an input from its sizes alone, against autograd."""

import pytest
import torch

from surge.layers.product import input_gradient

SETTINGS = {"stride": 1, "padding": 0, "dilation": 1}
GEOMETRIES = {
    "plain": {"padding": 1},
    "stride": {"stride": 2, "padding": 1},
    "stride-leaves-a-rest": {"stride": 3},
    "dilation": {"stride": 2, "dilation": 2},
    "groups": {"padding": 2, "groups": 4},
}


@pytest.mark.parametrize("batched", [True, False])
@pytest.mark.parametrize("dims", [1, 2])
@pytest.mark.parametrize("geometry", GEOMETRIES.values(), ids=GEOMETRIES)
def test_of_a_convolution(geometry, dims, batched):
    generator = torch.Generator().manual_seed(0)
    groups = geometry.get("groups", 1)
    sizes = (*((3,) if batched else ()), 8, *(9, 12)[:dims])
    x = torch.randn(sizes, generator=generator, dtype=torch.double, requires_grad=True)
    kernel = (8, 8 // groups, *(3, 2)[:dims])
    weight = torch.randn(kernel, generator=generator, dtype=torch.double)
    convolve = torch.conv1d if dims == 1 else torch.conv2d
    y = convolve(x, weight, None, **geometry)
    grad = torch.randn(y.shape, generator=generator, dtype=torch.double)
    (expected,) = torch.autograd.grad(y, x, grad)
    settings = [[geometry.get(k, d)] * dims for k, d in SETTINGS.items()]
    found = input_gradient(grad, x.shape, weight, settings, groups)
    assert torch.allclose(found, expected, rtol=1e-12, atol=1e-12)


def test_of_a_linear_map_and_of_nothing():
    weight, grad = torch.randn(5, 3), torch.randn(2, 7, 5)
    assert torch.equal(input_gradient(grad, (2, 7, 3), weight, (), 1), grad @ weight)
    kernel, none = torch.randn(4, 6, 3, 3), torch.randn(0, 4, 5, 5)
    found = input_gradient(none, (0, 6, 5, 5), kernel, ([1, 1], [1, 1], [1, 1]), 1)
    assert found.shape == (0, 6, 5, 5)
