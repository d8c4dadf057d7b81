"""Boxes of whole batches: overlaps, coding, NMS. One call does it for all images.

A box is x1, y1, x2, y2 in pixels, in the last dimension of a tensor.
"""

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from surge.kernels.fused import AVAILABLE

LARGEST = 4.135166556742356
"""Natural logarithm of 1000 / 16: no box becomes larger than that times its anchor."""
ROUNDS = 8
"""Rounds of NMS between two looks whether it has ended; a look waits for the device."""
PAIRS = {"cpu": 1 << 22, "cuda": 1 << 27}
"""Pairs of boxes that are compared at a time."""


def overlaps(ours: Tensor, others: Tensor) -> Tensor:
    """Return ``[..., n, m]``: intersection over union of ``[..., n, 4]`` and ``[..., m, 4]``."""
    left, top, right, bottom = (side[..., None] for side in ours.unbind(-1))
    x1, y1, x2, y2 = (side[..., None, :] for side in others.unbind(-1))
    shared = torch.minimum(right, x2).sub_(torch.maximum(left, x1)).clamp_(min=0)
    shared *= torch.minimum(bottom, y2).sub_(torch.maximum(top, y1)).clamp_(min=0)
    whole = ((right - left) * (bottom - top) + (x2 - x1) * (y2 - y1)).sub_(shared)
    return shared.div_(whole)


def encoded(boxes: Tensor, anchors: Tensor, weights: Sequence[float]) -> Tensor:
    """Return how anchors must move and grow to become the boxes.

    >>> encoded(torch.tensor([4.0, 0, 8, 4]), torch.tensor([0.0, 0, 4, 4]), (1, 1)).tolist()
    [1.0, 0.0, 0.0, 0.0]
    """
    (middle, size), (from_middle, from_size) = _middle(boxes), _middle(anchors)
    move = weights[0] * (middle - from_middle) / from_size
    return torch.cat([move, weights[1] * torch.log(size / from_size)], dim=-1)


def decoded(deltas: Tensor, anchors: Tensor, weights: Sequence[float]) -> Tensor:
    """Return the boxes that anchors become; undoes :func:`encoded`."""
    middle, size = _middle(anchors)
    move, growth = deltas[..., :2] / weights[0], deltas[..., 2:] / weights[1]
    centre = move * size + middle
    half = 0.5 * (growth.clamp(max=LARGEST).exp() * size)
    return torch.cat([centre - half, centre + half], dim=-1)


def _middle(boxes: Tensor) -> tuple[Tensor, Tensor]:
    size = boxes[..., 2:] - boxes[..., :2]
    return boxes[..., :2] + 0.5 * size, size


def clipped(boxes: Tensor, corner: Tensor) -> Tensor:
    """Return boxes within images; ``corner`` is (width, height) twice, and broadcasts."""
    return torch.minimum(boxes.clamp(min=0), corner)


def large(boxes: Tensor, least: float) -> Tensor:
    """Return which boxes have sides of at least this length."""
    return (boxes[..., 2:] - boxes[..., :2] >= least).all(dim=-1)


def chosen(values: Tensor, places: Tensor) -> Tensor:
    """Return ``values[n, places[n, k]]``; ``values`` is ``[N, A]`` or ``[N, A, C]``."""
    if values.dim() == 2:
        return values.gather(1, places)
    return values.gather(1, places[..., None].expand(-1, -1, values.shape[2]))


@torch.no_grad()
def thinned(boxes: Tensor, alive: Tensor, threshold: float) -> Tensor:
    """Return which of ``[G, L]`` boxes remain after NMS in each of G groups.

    A box goes if a better one that remains overlaps it by more than ``threshold``. This is solved
    for all boxes at once: whoever is beaten by one that stands falls, repeated until nothing
    changes. The first k boxes are right after k rounds, so the end is the answer of the one-by-one
    rule. On a GPU with Triton one kernel does it all.

    Args:
        boxes: ``[G, L, 4]``, best first.
        alive: ``[G, L]``, which of them take part.
        threshold: largest overlap of two that remain.
    """
    if boxes.numel() == 0:
        return alive
    if boxes.is_cuda and AVAILABLE:
        from surge.kernels.thinning import thin

        return thin(boxes, alive, threshold)
    share = max(1, PAIRS.get(boxes.device.type, PAIRS["cpu"]) // boxes.shape[1] ** 2)
    parts = zip(torch.split(boxes, share), torch.split(alive, share), strict=True)
    return torch.cat([_standing(some, living, threshold) for some, living in parts])


def _standing(boxes: Tensor, alive: Tensor, threshold: float) -> Tensor:
    # Short numbers: what counts is whether a sum of zeros and ones is zero.
    kind = torch.bfloat16 if boxes.is_cuda else torch.float32
    beats = (overlaps(boxes, boxes) > threshold).triu_(diagonal=1).to(kind)
    first = now = alive[:, None].to(kind)
    with torch.autocast(boxes.device.type, enabled=False):
        while True:
            for _ in range(ROUNDS):
                before, now = now, torch.baddbmm(first, now, beats, alpha=-1).clamp_(min=0)
            if torch.equal(before, now):
                return now[:, 0] > 0


def thinned_levels(boxes: Tensor, alive: Tensor, counts: Sequence[int], threshold: float) -> Tensor:
    """Return which of ``[N, M]`` boxes remain after NMS in each of several parts of each row.

    The parts, ``counts`` long, come one after the other, each best first. Long ones and short ones
    are done together, padded to the longest of them.
    """
    sizes = list(counts)
    split = list(zip(torch.split(boxes, sizes, 1), torch.split(alive, sizes, 1), strict=True))
    kept: dict[int, Tensor] = {}
    for together in (
        [n for n, count in enumerate(counts) if 2 * count > max(counts)],
        [n for n, count in enumerate(counts) if 2 * count <= max(counts)],
    ):
        if not together:
            continue
        width = max(counts[n] for n in together)
        spare = [width - counts[n] for n in together]
        some = [F.pad(split[n][0], (0, 0, 0, s)) for n, s in zip(together, spare, strict=True)]
        living = [F.pad(split[n][1], (0, s)) for n, s in zip(together, spare, strict=True)]
        standing = thinned(torch.cat(some), torch.cat(living), threshold)
        for n, rows in zip(together, torch.split(standing, len(boxes)), strict=True):
            kept[n] = rows[:, : counts[n]]
    return torch.cat([kept[n] for n in range(len(counts))], dim=1)
