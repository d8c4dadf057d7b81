"""Coarse gradients of linear layers, by products in 8-bit floating point.

Every factor is scaled so that its largest magnitude is the largest 8-bit number; gradients get five
bits of exponent, values and weights four. Sums are in float32.
"""

import torch
from torch import Tensor

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
