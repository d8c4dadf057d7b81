# mypy: disable-error-code="no-untyped-def, no-untyped-call, misc, untyped-decorator"
"""NMS of many groups of boxes in one kernel: one program per group, and nothing to wait for.

A program goes through its boxes block by block, best first. A block is first compared with all that
remains of the blocks before it, then with itself, until nothing changes; what remains is kept for
the blocks after it.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

BLOCK = 64
"""Boxes that are decided at a time."""


@triton.jit
def _beaten(better, x1, y1, x2, y2, inner, standing, outer, threshold):
    """Return which boxes, ``inner``, are overlapped too much by one that stands of ``outer``."""
    left = tl.load(better + 4 * outer)[:, None]
    top = tl.load(better + 4 * outer + 1)[:, None]
    right = tl.load(better + 4 * outer + 2)[:, None]
    bottom = tl.load(better + 4 * outer + 3)[:, None]
    across = tl.maximum(tl.minimum(right, x2[None]) - tl.maximum(left, x1[None]), 0.0)
    down = tl.maximum(tl.minimum(bottom, y2[None]) - tl.maximum(top, y1[None]), 0.0)
    shared = across * down
    area = ((x2 - x1) * (y2 - y1))[None]
    whole = (right - left) * (bottom - top) + area - shared
    share = tl.div_rn(shared, tl.where(whole > 0, whole, 1.0))  # two empty boxes share nothing
    over = (share > threshold) & (outer[:, None] < inner[None])
    return over & (standing[:, None] > 0)


@triton.jit
def _thin(boxes, alive, standing, count, threshold, BLOCK: tl.constexpr):
    group = tl.program_id(0).to(tl.int64)
    boxes += group * count * 4
    alive += group * count
    standing += group * count
    place = tl.arange(0, BLOCK)
    for first in range(0, count, BLOCK):
        inner = first + place
        x1 = tl.load(boxes + 4 * inner)
        y1 = tl.load(boxes + 4 * inner + 1)
        x2 = tl.load(boxes + 4 * inner + 2)
        y2 = tl.load(boxes + 4 * inner + 3)
        here = tl.load(alive + inner).to(tl.int32)
        for before in range(0, first, BLOCK):
            outer = before + place
            kept = tl.load(standing + outer).to(tl.int32)
            over = _beaten(boxes, x1, y1, x2, y2, inner, kept, outer, threshold)
            here = tl.where(tl.max(over.to(tl.int32), axis=0) > 0, 0, here)
        now = here
        changed = 1
        while changed > 0:
            over = _beaten(boxes, x1, y1, x2, y2, inner, now, inner, threshold)
            after = tl.where(tl.max(over.to(tl.int32), axis=0) > 0, 0, here)
            changed = tl.max(tl.where(after != now, 1, 0), axis=0)
            now = after
        tl.store(standing + inner, now.to(tl.int8))
        # What one thread wrote, others read for the next block.
        tl.debug_barrier()


def thin(boxes: Tensor, alive: Tensor, threshold: float) -> Tensor:
    """Return which of ``[G, L]`` boxes remain; they are ``[G, L, 4]`` in float32, best first."""
    groups, count = alive.shape
    spare = -count % BLOCK
    boxes = torch.nn.functional.pad(boxes.float(), (0, 0, 0, spare)).contiguous()
    living = torch.nn.functional.pad(alive.to(torch.int8), (0, spare)).contiguous()
    standing = torch.empty_like(living)
    with torch.cuda.device_of(boxes):  # Triton starts kernels on the current GPU
        # Rounded as in the plain form, or boxes close to the threshold would differ.
        _thin[(groups,)](
            boxes,
            living,
            standing,
            count + spare,
            threshold,
            BLOCK=BLOCK,
            num_warps=8,
            enable_fp_fusion=False,
        )
    return standing[:, :count] > 0
