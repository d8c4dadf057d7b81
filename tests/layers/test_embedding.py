"""A binary embedding looks up binarised rows."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from surge.errors import UnsupportedLayerError
from surge.layers import BinaryEmbedding


def pm(x):
    """Sign by hand."""
    return torch.where(x >= 0, 1.0, -1.0)


def test_embedding_rows_are_signs():
    layer, indices = BinaryEmbedding(7, 4), torch.tensor([[0, 3, 3], [6, 1, 0]])
    assert torch.equal(layer(indices), pm(layer.weight)[indices])


def test_embedding_gradient_adds_up_over_repeated_rows():
    layer, indices = BinaryEmbedding(7, 4), torch.tensor([2, 5, 2])
    grad = torch.randn(3, 4)
    layer(indices).backward(grad)
    expected = torch.zeros(7, 4).index_add(0, indices, grad)
    torch.testing.assert_close(layer.weight.grad, expected)


def test_embedding_learnable_scale_multiplies_its_row():
    layer, indices = BinaryEmbedding(7, 4, method="recu"), torch.tensor([2, 5, 2])
    with torch.no_grad():
        centred = layer.weight - layer.weight.mean(1, keepdim=True)
    rows, grad = pm(centred)[indices], torch.randn(3, 4)
    y = layer(indices)
    y.backward(grad)
    assert torch.equal(y, rows * layer.method.alpha[indices, None])
    expected = torch.zeros(7).index_add(0, indices, (grad * rows).sum(1))
    torch.testing.assert_close(layer.method.alpha.grad, expected)


def test_embedding_padding_row_gets_no_gradient():
    layer = BinaryEmbedding(7, 4, padding_idx=2)
    layer(torch.tensor([2, 3])).sum().backward()
    assert layer.weight.grad[2].eq(0).all() and layer.weight.grad[3].eq(1).all()


def test_embedding_can_scale_the_gradient_by_frequency():
    layer = BinaryEmbedding(7, 4, scale_grad_by_freq=True)
    layer(torch.tensor([1, 1, 1, 3])).sum().backward()
    torch.testing.assert_close(layer.weight.grad[[1, 3]], torch.ones(2, 4))


@pytest.mark.parametrize("method", ["bnn", "bireal", "dorefa", "irnet", "recu", "xnor"])
def test_embedding_packed_rows_are_what_it_returns(method):
    layer = BinaryEmbedding(7, 4, method=method)
    values, scale = layer.packed_weight()
    torch.testing.assert_close(layer(torch.arange(7)), values * scale[:, None])


def test_embedding_loads_a_float_state_dict():
    plain, layer = nn.Embedding(7, 4), BinaryEmbedding(7, 4, method="recu")
    assert set(layer.state_dict()) == {"weight", "method.alpha", "method.tau"}
    layer.load_state_dict(plain.state_dict(), strict=True)
    assert torch.equal(layer.weight, plain.weight)


def test_embedding_geometry_and_repr():
    layer = BinaryEmbedding(7, 4, padding_idx=0, method="bireal")
    g = layer.geometry
    assert (g.kind, g.out_features, g.in_features) == ("embedding", 7, 4)
    assert isinstance(layer, nn.Embedding)
    assert "7, 4, padding_idx=0, method=bireal (1/1 bit)" in repr(layer)


def test_embedding_takes_the_place_of_a_float_one():
    layer, indices = BinaryEmbedding(7, 4), torch.randint(7, (2, 3))
    assert layer(indices).shape == F.embedding(indices, layer.weight).shape


@pytest.mark.parametrize(
    ("options", "text"), [({"sparse": True}, "sparse=True"), ({"max_norm": 1.0}, "max_norm")]
)
def test_embedding_refuses_options_it_cannot_honour(options, text):
    with pytest.raises(UnsupportedLayerError, match=text):
        BinaryEmbedding(7, 4, **options)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_embedding_with_a_scale_keeps_a_low_dtype(dtype):
    layer = BinaryEmbedding(5, 4, method="recu").to(dtype)
    assert layer(torch.tensor([0, 3])).dtype == dtype
