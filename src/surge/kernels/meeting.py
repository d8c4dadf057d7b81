# mypy: disable-error-code="no-untyped-def, no-untyped-call, misc, untyped-decorator"
"""Where both gradients of a compensated layer meet: surrogate, norms and sum in one pass.

    total = surrogate(z) * raw + s * g_a        and the squared norms of both terms

``raw`` is the gradient at the binary tensor, ``g_a`` the auxiliary one; a learnable level gets the
sum for its own (see ``surge.layers.elastic``). Left to the compiler, norms are passes of their own
over tensors that the sum reads again. Sums are in float32 and in a fixed order, so results repeat
bit for bit.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.library import wrap_triton

from surge.kernels.branch import layout_of
from surge.kernels.narrow_kernels import BIREAL, CLIPPED
from surge.layers.elastic import FLOOR

SIGNED, UNSIGNED = tl.constexpr(3), tl.constexpr(4)

BLOCK = 1024
"""Elements of a program's pass."""
ENOUGH = 2048
"""Programs that fill a GPU."""
PASSES = (8, 4, 2, 1)
"""Of a program: the most that leave enough programs, so that few partial sums remain."""


@triton.jit
def _meet(
    raw,
    auxiliary,
    z,
    level,
    scale,
    total,
    partial,
    count,
    RULE: tl.constexpr,
    LEAST: tl.constexpr,
    BLOCK: tl.constexpr,
    ROUNDS: tl.constexpr,
):
    program = tl.program_id(0)
    s = tl.load(scale)
    a = tl.maximum(tl.load(level).to(tl.float32), LEAST)
    main_squares = tl.zeros((BLOCK,), tl.float32)
    auxiliary_squares = tl.zeros((BLOCK,), tl.float32)
    level_terms = tl.zeros((BLOCK,), tl.float32)
    for part in range(ROUNDS):
        where = (program * ROUNDS + part) * BLOCK + tl.arange(0, BLOCK)
        inside = where < count
        g_b = tl.load(raw + where, mask=inside, other=0.0).to(tl.float32)
        g_a = tl.load(auxiliary + where, mask=inside, other=0.0).to(tl.float32)
        x = tl.load(z + where, mask=inside, other=0.0).to(tl.float32)
        if RULE == CLIPPED:
            g_b = tl.where(tl.abs(x) <= 1, g_b, 0.0)
        elif RULE == BIREAL:
            g_b = g_b * tl.maximum(2 - 2 * tl.abs(x), 0.0)
        elif RULE == SIGNED:
            level_terms += tl.where(x >= 0, g_b, -g_b)
            g_b = tl.where(tl.abs(x) <= a, g_b, 0.0)
        else:
            share = x / a
            between = (share >= 0) & (share <= 1)
            nearer = tl.where(share > 0.5, 1.0, 0.0)
            level_terms += g_b * tl.where(between, nearer - share, tl.where(share > 1, 1.0, 0.0))
            g_b = tl.where(between, g_b, 0.0)
        main_squares += g_b * g_b
        auxiliary_squares += g_a * g_a
        value = (g_b + s * g_a).to(total.dtype.element_ty)
        tl.store(total + where, value, mask=inside)
    tl.store(partial + 3 * program, tl.sum(main_squares))
    tl.store(partial + 3 * program + 1, tl.sum(auxiliary_squares))
    tl.store(partial + 3 * program + 2, tl.sum(level_terms))


def meet(
    raw: Tensor, auxiliary: Tensor, z: Tensor, level: Tensor | None, scale: Tensor, rule: int
) -> tuple[Tensor, Tensor]:
    """Return the gradient of ``z``; and the squared norms of its terms, the second unscaled, and
    the level's sum.
    """
    layout = layout_of(z)
    raw, auxiliary = (g.contiguous(memory_format=layout) for g in (raw, auxiliary))
    total, count = torch.empty_like(z), z.numel()
    rounds = next(r for r in PASSES if r == 1 or count >= r * BLOCK * ENOUGH)
    programs = -(-count // (BLOCK * rounds))
    partial = torch.empty((programs, 3), dtype=torch.float32, device=z.device)
    wrap_triton(_meet)[(programs,)](
        raw,
        auxiliary,
        z,
        scale if level is None else level,
        scale,
        total,
        partial,
        count,
        RULE=rule,
        LEAST=FLOOR,
        BLOCK=BLOCK,
        ROUNDS=rounds,
        num_warps=4,
    )
    return total, partial.sum(dim=0)
