"""What both heads of a detector are trained with: matching and drawing, for a whole batch at once.

Sizes are fixed and masks say what counts, so that nothing waits for the device. Rules are those of
torchvision's Faster R-CNN.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from surge.errors import ConfigError
from surge.models.boxes import chosen, encoded, overlaps

Target = Mapping[str, Tensor]
"""``boxes`` float ``[n, 4]`` (x1, y1, x2, y2 in pixels), ``labels`` int64 ``[n]`` from 1 on."""
ANCHOR_OVERLAPS = (0.7, 0.3)
"""From which overlap on an anchor is on an object, and below which on background."""
REGION_OVERLAP = 0.5
"""From which overlap on a region is on an object."""
ANCHOR_SHARE, REGION_SHARE = 0.5, 0.25
"""Largest parts of those that are drawn which are on objects."""
ANCHOR_WEIGHTS, REGION_WEIGHTS = (1.0, 1.0), (10.0, 5.0)
"""Of moves and of growth, in what the heads say about boxes."""


@dataclass(frozen=True, eq=False)
class Objects:
    """The objects of a batch; images with fewer than others are padded."""

    boxes: Tensor
    """``[N, G, 4]``, G at least 1."""
    labels: Tensor
    """int64 ``[N, G]``, from 1 on; 0 is padding."""

    @property
    def present(self) -> Tensor:
        """Which are no padding, ``[N, G]``."""
        return self.labels > 0

    @classmethod
    def of(cls, targets: Sequence[Target]) -> "Objects":
        """Put the ``boxes`` and ``labels`` of all images side by side."""
        counts = [len(target["labels"]) for target in targets]
        most = max(1, *counts)
        slots = [most * image + n for image, count in enumerate(counts) for n in range(count)]
        boxes = torch.cat([target["boxes"] for target in targets])
        labels = torch.cat([target["labels"] for target in targets])
        # A copy that blocks would wait for all that the device has to do.
        at = torch.tensor(slots, dtype=torch.int64).to(boxes.device, non_blocking=True)
        rows = boxes.new_zeros(most * len(counts), 4).index_copy_(0, at, boxes)
        kinds = labels.new_zeros(most * len(counts)).index_copy_(0, at, labels)
        return cls(rows.view(-1, most, 4), kinds.view(-1, most))


def objects_of(targets: Sequence[Target] | None, count: int) -> Objects:
    """Return the objects of so many images.

    Raises:
        ConfigError: there are no targets, or others than the images need.
    """
    if targets is None or len(targets) != count:
        got = "none" if targets is None else str(len(targets))
        raise ConfigError(
            f"In training a detector needs a target for each image: {count} images, targets: {got}."
        )
    for target in targets:
        if target["boxes"].shape != (len(target["labels"]), 4):
            raise ConfigError(
                f"A target needs boxes [n, 4] and labels [n]; got "
                f"{tuple(target['boxes'].shape)} and {tuple(target['labels'].shape)}."
            )
    return Objects.of(targets)


@torch.no_grad()
def matched(
    boxes: Tensor, objects: Objects, *, high: float, low: float, rescue: bool = False
) -> tuple[Tensor, Tensor]:
    """Return the object that each box ``[N, A, 4]`` overlaps most, and whether it is on it.

    1 from an overlap of ``high`` on, 0 below ``low``, -1 between. With ``rescue`` the boxes that
    overlap an object most are on one, too, however little that is.
    """
    present = objects.present[..., None]
    overlap = overlaps(objects.boxes, boxes).masked_fill_(~present, -1.0)
    value, best = overlap.max(dim=1)
    kind = (value >= high).long() - ((value >= low) & (value < high)).long()
    if rescue:
        most = overlap.amax(dim=2, keepdim=True)
        rescued = ((overlap == most) & present).any(dim=1)
        kind = torch.where(rescued, 1, kind)
    return best, kind


@torch.no_grad()
def drawn(kind: Tensor, count: int, share: float) -> tuple[Tensor, Tensor]:
    """Draw ``count`` places of every row: ones, at most that share, then zeros.

    Every one and every zero is as likely as the others. Where there are too few, the rest does not
    count.

    Args:
        kind: ``[N, A]`` of 1, 0, and -1, which is never drawn.
        count: places to draw.
        share: largest part of them that are ones.

    Returns:
        Places ``[N, K]``, K at most ``count``, and which of them count.
    """
    width = kind.shape[1]
    keys = torch.rand(kind.shape, device=kind.device)
    value, at = torch.where(kind > 0, keys, -1.0).topk(min(int(count * share), width), dim=1)
    first = torch.zeros_like(kind, dtype=torch.bool).scatter_(1, at, value >= 0)
    keys = torch.where(first, keys + 1.0, torch.where(kind == 0, keys, -1.0))
    value, places = keys.topk(min(count, width), dim=1)
    return places, value >= 0


@torch.no_grad()
def anchors_to_learn(
    anchors: Tensor, objects: Objects, count: int
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Draw anchors for the first head.

    Returns:
        Per image, with K at most ``count``: places ``[N, K]``, which of them are on objects, the
        moves that would be right there ``[N, K, 4]``, and which count at all.
    """
    high, low = ANCHOR_OVERLAPS
    best, kind = matched(anchors[None], objects, high=high, low=low, rescue=True)
    places, counted = drawn(kind, count, ANCHOR_SHARE)
    right = chosen(objects.boxes, chosen(best, places))
    moves = encoded(right, anchors[places], ANCHOR_WEIGHTS)
    return places, chosen(kind, places) > 0, moves, counted


@torch.no_grad()
def regions_to_learn(
    proposals: Tensor, valid: Tensor, objects: Objects, count: int
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Draw regions for the second head, from the proposals and the objects themselves.

    Returns:
        Per image, with K at most ``count``: boxes ``[N, K, 4]``, labels ``[N, K]``, the moves that
        would be right ``[N, K, 4]``, and which count at all.
    """
    boxes = torch.cat([proposals, objects.boxes], dim=1)
    there = torch.cat([valid, objects.present], dim=1)
    best, kind = matched(boxes, objects, high=REGION_OVERLAP, low=REGION_OVERLAP)
    places, counted = drawn(torch.where(there, kind, -1), count, REGION_SHARE)
    regions, theirs = chosen(boxes, places), chosen(best, places)
    labels = torch.where(chosen(kind, places) > 0, chosen(objects.labels, theirs), 0)
    moves = encoded(chosen(objects.boxes, theirs), regions, REGION_WEIGHTS)
    return regions, labels, moves, counted
