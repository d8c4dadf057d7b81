"""Gradients of products that need less than autograd keeps, against autograd."""

import pytest
import torch

from surge.layers import BinaryConv1d, BinaryConv2d, BinaryLayer
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


@pytest.mark.parametrize("method", ["recu", "rbnn", "lws"])
@pytest.mark.parametrize("options", [{}, {"stride": 2, "padding": 1, "groups": 2}])
@pytest.mark.parametrize(
    "layer_type, shape", [(BinaryConv1d, (3, 8, 9)), (BinaryConv2d, (3, 8, 9, 9))]
)
def test_folded_scale_has_the_gradients_of_a_factor(layer_type, shape, method, options):
    """In training the scale goes into the weights backward; values and gradients stay."""
    torch.manual_seed(0)
    layer = layer_type(8, 12, 3, method=method, **options).double()
    x = torch.randn(shape).double().requires_grad_()
    learnt = [x, *layer.parameters()]

    def found(operate):
        y = operate(layer, layer.method.binarize(layer.method.prepare_input(x)), x)
        return y, torch.autograd.grad(y.sin().sum(), learnt, allow_unused=True)

    (y, grads), (expected, plain) = found(layer_type.operate), found(BinaryLayer.operate)
    assert torch.equal(y, expected)
    for grad, one in zip(grads, plain, strict=True):
        assert (grad is None) == (one is None)
        if one is not None:
            torch.testing.assert_close(grad, one)


def test_folded_scale_needs_no_output_of_the_convolution():
    """The backward reads inputs and weights alone, so the sums are free once they are scaled."""
    layer, x = BinaryConv2d(8, 8, 3, method="recu"), torch.randn(2, 8, 6, 6, requires_grad=True)
    sizes = []

    def note(tensor):
        sizes.append(tuple(tensor.shape))
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor):
        y = layer(x)
    assert y.requires_grad and (2, 8, 4, 4) not in sizes
