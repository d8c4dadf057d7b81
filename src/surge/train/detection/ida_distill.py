r"""IDa-Det's distillation: proposals where teacher and student differ most, and the entropy loss.

With T and S the maps of one pyramid level and R a patch of them under a proposal::

    p        softmax of a channel over the places of R
    d        mean(p)^2 / var(p), one number per channel
    D(R)     sum over channels of abs(d_T - d_S), over the area of R
    m        1 under the 60 % of an image's proposals with the largest D, else 0
    loss     sum of [(T - S)^2 + (T - S)^2 / sigma^2 + 0.001 ln sigma^2] m / max(1, sum of m)

where m counts all channels of a place, so that the loss is a mean; sigma is one learnable number.
"""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

SHARE = 0.6
"""Share of the proposals that are kept (gamma)."""
SMALLEST = 1e-6
"""Least variance, relative to the squared mean, that a patch is said to have: one of a single place
has none."""
LOG_WEIGHT = 1e-3
ADAPTED = 1e-4
"""Size of the adapters' weights at the start."""


def cells(low: Tensor, high: Tensor, extent: int, count: int) -> Tensor:
    """Return which of ``count`` cells over ``extent`` pixels lie under ``[low, high)``.

    At least one does, also for a line at the border.

    >>> cells(torch.tensor([0.0, 7.0]), torch.tensor([4.0, 8.0]), 8, 4).int().tolist()
    [[1, 1, 0, 0], [0, 0, 0, 1]]
    """
    first = (low * count / extent).floor().clamp(0, count - 1)
    last = (high * count / extent).ceil()
    last = torch.maximum(last, first + 1)
    place = torch.arange(count, device=low.device)
    return (place >= first[..., None]) & (place < last[..., None])


def box_cells(
    boxes: Tensor, canvas: tuple[int, int], shape: tuple[int, int]
) -> tuple[Tensor, Tensor]:
    """Return the rows ``[..., h]`` and columns ``[..., w]`` of a map under boxes of a canvas."""
    rows = cells(boxes[..., 1], boxes[..., 3], canvas[0], shape[0])
    return rows, cells(boxes[..., 0], boxes[..., 2], canvas[1], shape[1])


def patch_dispersion(features: Tensor, rows: Tensor, columns: Tensor) -> Tensor:
    """Return d of every patch and channel, ``[N, P, C]``.

    ``features`` is ``[N, C, h, w]``, ``rows`` ``[N, P, h]`` and ``columns`` ``[N, P, w]``. The mean
    of a softmax is 1 / A, so that with sums S_k of exp(k f) over the patch d is
    1 / (A S_2 / S_1^2 - 1): two sums over boxes, which two small products give for all of them.
    """
    lifted = features.to(torch.promote_types(features.dtype, torch.float32))
    lifted = (lifted - lifted.amax(dim=(2, 3), keepdim=True)).exp()
    down, across = rows.to(lifted.dtype), columns.to(lifted.dtype)

    def summed(values: Tensor) -> Tensor:
        lines = (values.flatten(1, 2) @ across.transpose(1, 2)).view(*values.shape[:3], -1)
        return (lines * down.transpose(1, 2)[:, None]).sum(dim=2).transpose(1, 2)

    area = (down.sum(dim=2) * across.sum(dim=2))[..., None]
    tiny = torch.finfo(lifted.dtype).tiny
    ratio = summed(lifted.square()) / summed(lifted).square().clamp(min=tiny)
    return 1 / (area * ratio - 1).clamp(min=SMALLEST)


def discrepancy(teacher: Tensor, student: Tensor, rows: Tensor, columns: Tensor) -> Tensor:
    """Return D of every patch, ``[N, P]``."""
    both = patch_dispersion(torch.cat([teacher, student.to(teacher.dtype)], dim=1), rows, columns)
    first, second = both.chunk(2, dim=2)
    area = rows.sum(dim=2) * columns.sum(dim=2)
    return (first - second).abs().sum(dim=2) / area


def most_different(scores: Tensor, valid: Tensor) -> Tensor:
    """Return which of ``[N, P]`` proposals are kept: of each image's valid ones, that share.

    >>> scores = torch.tensor([[1.0, 5.0, 3.0, 9.0]])
    >>> most_different(scores, scores < 9).tolist()
    [[False, True, True, False]]
    """
    order = scores.masked_fill(~valid, -torch.inf).argsort(dim=1, descending=True, stable=True)
    place = order.argsort(dim=1)
    wanted = (SHARE * valid.sum(dim=1, keepdim=True)).ceil()
    return valid & (place < wanted)


def union_mask(rows: Tensor, columns: Tensor, chosen: Tensor) -> Tensor:
    """Return ``[N, 1, h, w]``: 1 under any chosen patch, else 0."""
    down, across = (rows & chosen[..., None]).float(), columns.float()
    return (down.transpose(1, 2) @ across > 0)[:, None].float()


@torch.no_grad()
def proposal_mask(
    teacher: Tensor, student: Tensor, boxes: Tensor, valid: Tensor, canvas: tuple[int, int]
) -> Tensor:
    """Return where one level is imitated: under the proposals in which both maps differ most.

    ``boxes`` is ``[N, P, 4]`` in pixels of the canvas; places that are not ``valid`` are padding.
    """
    if boxes.shape[1] == 0:
        return teacher.new_zeros(len(teacher), 1, *teacher.shape[2:])
    rows, columns = box_cells(boxes, canvas, (teacher.shape[2], teacher.shape[3]))
    scores = discrepancy(teacher, student, rows, columns)
    return union_mask(rows, columns, most_different(scores, valid))


def entropy_loss(student: Tensor, teacher: Tensor, mask: Tensor, sigma: Tensor) -> Tensor:
    """Return the loss of one level."""
    squared = (teacher.float() - student.float()).square().mean(dim=1, keepdim=True)
    log = LOG_WEIGHT * sigma.square().log()
    terms = (squared + squared / sigma.square() + log) * mask
    return terms.sum() / mask.sum().clamp(min=1)


class Imitation(nn.Module):
    """The student's adapters and sigma: learned with it, and not a part of it."""

    def __init__(self, levels: int = 5, channels: int = 256) -> None:
        """One 3x3 convolution per level, its weights N(0, 1) wrapped to (-2, 2), times 1e-4."""
        super().__init__()
        self.adapters = nn.ModuleList(
            nn.Conv2d(channels, channels, 3, padding=1) for _ in range(levels)
        )
        self.sigma = nn.Parameter(torch.tensor(1.000001))
        for adapter in self.adapters:
            assert isinstance(adapter, nn.Conv2d) and adapter.bias is not None
            with torch.no_grad():
                adapter.weight.copy_(torch.randn_like(adapter.weight).fmod(2) * ADAPTED)
                adapter.bias.zero_()

    def forward(
        self,
        student: Sequence[Tensor],
        teacher: Sequence[Tensor],
        boxes: Tensor,
        valid: Tensor,
        canvas: tuple[int, int],
    ) -> Tensor:
        """Return the mean of the levels' losses; the student's maps have passed their adapters."""
        losses = []
        for s, t in zip(student, teacher, strict=True):
            mask = proposal_mask(t, s, boxes, valid, canvas)
            losses.append(entropy_loss(s, t, mask, self.sigma))
        return torch.stack(losses).mean()
