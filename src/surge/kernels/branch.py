"""A layer's input branches into binary and auxiliary path; their gradients meet in one kernel."""

import math
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from surge.functional import is_channels_last, operator, sign
from surge.kernels import fused
from surge.layers.elastic import nearer_level
from surge.layers.product import product_dtype
from surge.method import Method

if TYPE_CHECKING:
    from surge.layers.base import BinaryLayer

RULES = {**fused.SURROGATES, "elastic_signed": 3, "elastic_unsigned": 4}
"""The kernel's numbers for a method's input rule."""


def layout_of(z: Tensor) -> torch.memory_format:
    """Return how a tensor is laid out, if it is dense."""
    return torch.channels_last if is_channels_last(z) else torch.contiguous_format


def fits(layer: "BinaryLayer", z: Tensor) -> bool:
    """Return whether :func:`branch` does what tap and the method's own rule would, and sooner.

    It is sooner where a method learns a threshold or a level, which needs one more sum over the
    gradient. Elsewhere the compiler folds both terms into whatever reads their sum.
    """
    return (
        layer.method.learns_at_input
        and fused.AVAILABLE
        and fused.compiled()
        and z.is_cuda
        and z.dtype in (torch.bfloat16, torch.float16, torch.float32)
        and 0 < z.numel() < 2**31
        and z.is_contiguous(memory_format=layout_of(z))
        and layer.method.input_rule() is not None
        and type(layer.method).scale_output is Method.scale_output
    )


def branch(
    layer: "BinaryLayer", z: Tensor, scale: Tensor, probes: dict[str, Tensor]
) -> tuple[Tensor, Tensor]:
    """Return ``z`` binarised, and ``z`` for the auxiliary gradient to come back to, unscaled.

    The former's gradient passes the surrogate, the latter's is scaled, and squared norms of both
    leave as the gradients of the probes. Both come in the dtype in which products are computed, so
    that their gradients do, too.
    """
    rule = layer.method.input_rule()
    assert rule is not None
    low = product_dtype(z)
    return branching(z, rule[1], scale, probes["main"], probes["auxiliary"], RULES[rule[0]], low)


def _setup(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
    z, level, scale, _, _, ctx.rule, _ = inputs
    ctx.save_for_backward(z, level, scale)


def _backward(ctx: Any, raw: Tensor, auxiliary: Tensor) -> tuple[Tensor | None, ...]:
    from surge.compensation.dual_path import refuse_double_backward
    from surge.kernels import meeting

    refuse_double_backward()
    z, level, scale = ctx.saved_tensors
    total, sums = meeting.meet(raw, auxiliary, z, level, scale, ctx.rule)
    main, other, to_level = sums.unbind()
    if level is not None:
        to_level = (to_level / math.sqrt(z.numel())).to(level.dtype)
    return total, None if level is None else to_level, None, main, other, None, None


@operator("branching", backward=_backward, setup=_setup)
def branching(
    z: Tensor,
    level: Tensor | None,
    scale: Tensor,
    probe_main: Tensor,
    probe_auxiliary: Tensor,
    rule: int,
    dtype: torch.dtype,
) -> tuple[Tensor, Tensor]:
    """Return ``z`` binarised by a rule, and ``z``, both as ``dtype``."""
    unsigned = rule == RULES["elastic_unsigned"]
    binary = sign(z) if level is None else nearer_level(z, level, unsigned=unsigned)
    return binary.to(dtype), z.to(dtype, copy=True)
