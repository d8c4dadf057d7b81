"""What holds for every method by itself."""

import pytest
import torch

import surge
from tests.nets import cnn, images, loss_of, registered_methods


@registered_methods
def test_no_step_reads_a_value_on_the_host(method):
    """Tensors of the meta device have none: forward, backward and the step's hook must do."""
    net = cnn(method).train()
    surge.on_epoch(net, 3, 10)
    net.to("meta")
    x, labels = (tensor.to("meta") for tensor in images())
    loss_of(net, (x, labels)).backward()
    surge.on_step(net)
    assert net.eval()(x).shape == (4, 3)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32], ids=str)
@registered_methods
def test_filters_of_equal_weights_give_numbers_in_every_precision(method, dtype):
    layer = surge.BinaryLinear(8, 4, method=method)
    with torch.no_grad():
        layer.weight[0], layer.weight[1] = 0.25, 0.0
    layer.to(dtype)
    surge.on_epoch(layer, 1, 10)
    x = torch.randn(3, 8, dtype=dtype, requires_grad=True)
    y = layer(x)
    y.sum().backward()
    assert y.dtype == layer.weight.grad.dtype == dtype
    assert all(t.isfinite().all() for t in (y, x.grad, layer.weight.grad))
    assert layer.weight.grad.abs().max() < 1e4
