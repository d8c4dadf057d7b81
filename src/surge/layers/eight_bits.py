"""Products of linear layers in 8-bit floating point: exact ones of signs, and coarse gradients.

-1, 0 and 1 are 8-bit numbers, so a product of binary factors loses nothing. A gradient that needs
no more is scaled so that its largest magnitude is the largest 8-bit number; gradients get five bits
of exponent, values and weights four. Sums are in float32.
"""

from typing import Any

import torch
from torch import Tensor

from surge.functional import operator
from surge.layers.product import transposed

BINARY = False
"""Whether training multiplies binary factors in 8 bits: exact, but in BERT-base on an H200 the
work around the products grows by more than they save."""

GRADIENT, VALUE = torch.float8_e5m2, torch.float8_e4m3fn
MULTIPLE = 16
"""Sizes that tensor cores take."""


def quantised(x: Tensor, kind: torch.dtype) -> tuple[Tensor, Tensor]:
    """Return ``x`` in 8 bits, and the factor that undoes its scaling.

    >>> small, factor = quantised(torch.tensor([0.5, -1.0]), VALUE)
    >>> (small.float() * factor).tolist()
    [0.5, -1.0]
    """
    largest = torch.finfo(kind).max
    wide = x.float()
    factor = (wide.abs().amax() / largest).clamp(min=1e-30)
    return (wide / factor).clamp(-largest, largest).to(kind), factor


def multiply(a: tuple[Tensor, Tensor], b: tuple[Tensor, Tensor], dtype: torch.dtype) -> Tensor:
    """Return the product of two quantised matrices, by the hardware where it can."""
    left, right = a[0], b[0]
    if _hardware(left, right):
        columns = right.t().contiguous().t()  # the second factor is read column by column
        return torch._scaled_mm(left.contiguous(), columns, a[1], b[1], out_dtype=dtype)
    return ((left.float() @ right.float()) * (a[1] * b[1])).to(dtype)


def _hardware(left: Tensor, right: Tensor) -> bool:
    sizes = (*left.shape, right.shape[1])
    if not left.is_cuda or any(size % MULTIPLE for size in sizes):
        return False
    return torch.cuda.get_device_capability(left.device) >= (8, 9)


def transposed_linear(
    grad: Tensor, x: Tensor, weight: Tensor, needs: tuple[bool, bool]
) -> tuple[Tensor | None, Tensor | None]:
    """Return (W^T G, x * G) of a linear map, both computed in 8 bits, in the gradient's dtype."""
    rows = quantised(grad.reshape(-1, grad.shape[-1]), GRADIENT)
    to_input = to_weight = None
    if needs[0]:
        to_input = multiply(rows, quantised(weight, VALUE), grad.dtype)
        to_input = to_input.reshape(*grad.shape[:-1], weight.shape[1])
    if needs[1]:
        values = quantised(x.reshape(-1, x.shape[-1]), VALUE)
        to_weight = multiply((rows[0].t(), rows[1]), values, grad.dtype)
    return to_input, to_weight


def fits(x: Tensor, weight: Tensor) -> bool:
    """Return whether :func:`signs_linear` is to take the place of the plain product."""
    return BINARY and x.numel() > 0 and _hardware(x.reshape(-1, x.shape[-1]), weight.t())


def _signs_setup(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    x, weight, level, _, _ = inputs
    ctx.save_for_backward(_units(x), weight, level)
    ctx.dtype = x.dtype


def _signs_backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
    units, weight, level = ctx.saved_tensors
    x = (level * units.float()).to(ctx.dtype)
    needs = (ctx.needs_input_grad[0], ctx.needs_input_grad[1])
    to_x, to_weight = transposed(grad, x, weight, (), 1, needs)
    to_x = to_x if to_x is None else to_x.to(ctx.dtype)
    to_weight = to_weight if to_weight is None else to_weight.to(weight.dtype)
    return to_x, to_weight, None, None, None


def _units(x: Tensor) -> Tensor:
    return torch.sign(x).to(VALUE)


@operator("signs_linear", backward=_signs_backward, setup=_signs_setup)
def signs_linear(
    x: Tensor, weight: Tensor, level: Tensor, scale: Tensor, dtype: torch.dtype
) -> Tensor:
    """Return ``x @ weight.T`` where they are +-``level`` or 0, and +-``scale``; in 8 bits, exactly.

    The gradients are those of the plain product. The backward keeps one byte of each input.
    """
    rows = _units(x.reshape(-1, x.shape[-1]))
    product = multiply((rows, level.float()), (_units(weight).t(), scale.float()), dtype)
    return product.reshape(*x.shape[:-1], weight.shape[0])
