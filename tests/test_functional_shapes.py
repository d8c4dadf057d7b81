"""The functions of ``surge.functional`` do not care about shape, dtype or memory layout."""

import pytest
import torch

from tests.test_functional import DTYPES, RULES, backward, every, numpy64

pytest.importorskip("hypothesis")  # a GPU machine's own interpreter may lack it

from hypothesis import given
from hypothesis import strategies as st


def lay_out(x, layout):
    """Return a tensor with the values of ``x`` in another memory layout."""
    match layout:
        case "transposed" if x.dim() >= 2:
            return x.transpose(0, -1).contiguous().transpose(0, -1)
        case "strided":
            return torch.stack([x, -x], dim=-1)[..., 0]
        case _:
            return x


shapes = st.lists(st.integers(0, 4), min_size=0, max_size=4)


@every
@given(
    shape=shapes,
    dtype=st.sampled_from(DTYPES),
    layout=st.sampled_from(["contiguous", "transposed", "strided"]),
    seed=st.integers(0, 2**16),
)
def test_any_shape_dtype_and_layout(rule, shape, dtype, layout, seed):
    generator = torch.Generator().manual_seed(seed)
    x = lay_out((1.5 * torch.randn(shape, generator=generator)).to(dtype), layout)
    grad = torch.randn(shape, generator=generator).to(dtype)
    plain_y, plain_grad, _ = backward(rule, x.contiguous(), grad)

    leaf = x.detach().requires_grad_()
    y = rule(leaf)
    y.backward(lay_out(grad, layout))
    assert y.shape == x.shape and y.dtype == dtype
    assert torch.equal(y, plain_y)
    assert torch.equal(leaf.grad, plain_grad)
    if rule in RULES.values():
        assert torch.equal(y, torch.as_tensor(rule.value(numpy64(x))).to(dtype))
