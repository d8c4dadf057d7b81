# mypy: disable-error-code="no-untyped-def, no-untyped-call, misc, untyped-decorator"
"""Where both gradients of a compensated layer meet: surrogate, norms and sum in one pass.

    total = surrogate(z) * raw + s * g_a        and the squared norms of both terms

``raw`` is the gradient at the binary tensor, ``g_a`` the auxiliary one. Left to the compiler, norms
are passes of their own over tensors that the sum reads again. Sums are in float32 and in a fixed
order, so results repeat bit for bit.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.library import wrap_triton

from surge.kernels.branch import layout_of
from surge.kernels.narrow_conv import BIREAL, CLIPPED

BLOCK, ROUNDS = 1024, 8
"""Elements of a program's pass, and its passes."""


@triton.jit
def _meet(
    raw,
    auxiliary,
    z,
    scale,
    total,
    partial,
    count,
    SURROGATE: tl.constexpr,
    BLOCK: tl.constexpr,
    ROUNDS: tl.constexpr,
):
    program = tl.program_id(0)
    s = tl.load(scale)
    main_squares = tl.zeros((BLOCK,), tl.float32)
    auxiliary_squares = tl.zeros((BLOCK,), tl.float32)
    for part in range(ROUNDS):
        where = (program * ROUNDS + part) * BLOCK + tl.arange(0, BLOCK)
        inside = where < count
        g_b = tl.load(raw + where, mask=inside, other=0.0).to(tl.float32)
        g_a = tl.load(auxiliary + where, mask=inside, other=0.0).to(tl.float32)
        x = tl.load(z + where, mask=inside, other=0.0).to(tl.float32)
        if SURROGATE == CLIPPED:
            g_b = tl.where(tl.abs(x) <= 1, g_b, 0.0)
        elif SURROGATE == BIREAL:
            g_b = g_b * tl.maximum(2 - 2 * tl.abs(x), 0.0)
        main_squares += g_b * g_b
        auxiliary_squares += g_a * g_a
        value = (g_b + s * g_a).to(total.dtype.element_ty)
        tl.store(total + where, value, mask=inside)
    tl.store(partial + 2 * program, tl.sum(main_squares))
    tl.store(partial + 2 * program + 1, tl.sum(auxiliary_squares))


def meet(
    raw: Tensor, auxiliary: Tensor, z: Tensor, scale: Tensor, surrogate: int
) -> tuple[Tensor, Tensor]:
    """Return the gradient of ``z``, and the squared norms of its two terms, the second unscaled."""
    layout = layout_of(z)
    raw, auxiliary = (g.contiguous(memory_format=layout) for g in (raw, auxiliary))
    total, count = torch.empty_like(z), z.numel()
    programs = -(-count // (BLOCK * ROUNDS))
    partial = torch.empty((programs, 2), dtype=torch.float32, device=z.device)
    wrap_triton(_meet)[(programs,)](
        raw,
        auxiliary,
        z,
        scale,
        total,
        partial,
        count,
        SURROGATE=surrogate,
        BLOCK=BLOCK,
        ROUNDS=ROUNDS,
        num_warps=4,
    )
    return total, partial.sum(dim=0)
