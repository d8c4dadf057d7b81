"""A layer's input branches into sign and auxiliary path; their gradients meet in one kernel."""

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from surge.functional import operator, sign
from surge.kernels import fused
from surge.method import Method

if TYPE_CHECKING:
    from surge.layers.base import BinaryLayer

ENABLED = False
"""Whether compiled steps use the kernel. It is exact, but no GPU has timed it yet."""


def layout_of(z: Tensor) -> torch.memory_format:
    """Return how a tensor is laid out, if it is dense."""
    if z.dim() == 4 and z.is_contiguous(memory_format=torch.channels_last):
        return torch.channels_last
    return torch.contiguous_format


def fits(layer: "BinaryLayer", z: Tensor) -> bool:
    """Return whether :func:`branch` does what tap and the layer's own sign would, and sooner."""
    method = type(layer.method)
    return (
        ENABLED
        and fused.AVAILABLE
        and fused.compiled()
        and z.is_cuda
        and z.dtype in (torch.bfloat16, torch.float16, torch.float32)
        and 0 < z.numel() < 2**31
        and z.is_contiguous(memory_format=layout_of(z))
        and method.binarize is Method.binarize
        and method.scale_output is Method.scale_output
    )


def branch(
    layer: "BinaryLayer", z: Tensor, scale: Tensor, probes: dict[str, Tensor]
) -> tuple[Tensor, Tensor]:
    """Return the sign of ``z``, and ``z`` for the auxiliary gradient to come back to, unscaled.

    The sign's gradient passes the surrogate, the other is scaled, and squared norms of both leave
    as the gradients of the probes.
    """
    code = fused.SURROGATES[layer.method.surrogate]
    return branching(z, scale, probes["main"], probes["auxiliary"], code)


def _setup(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
    z, scale, _, _, ctx.surrogate = inputs
    ctx.save_for_backward(z, scale)


def _backward(ctx: Any, raw: Tensor, auxiliary: Tensor) -> tuple[Tensor | None, ...]:
    from surge.compensation.dual_path import refuse_double_backward
    from surge.kernels import meeting

    refuse_double_backward()
    z, scale = ctx.saved_tensors
    total, squares = meeting.meet(raw, auxiliary, z, scale, ctx.surrogate)
    return total, None, *squares.unbind(), None


@operator("branching", backward=_backward, setup=_setup)
def branching(
    z: Tensor, scale: Tensor, probe_main: Tensor, probe_auxiliary: Tensor, surrogate: int
) -> tuple[Tensor, Tensor]:
    """Return ``sign(z)`` and ``z``."""
    return sign(z), z.clone()
