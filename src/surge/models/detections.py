"""The second half of a detector: regions of the maps, and from their scores to detections."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from surge.models.boxes import chosen, large, thinned
from surge.models.vision_ops import vision

USUAL, USUAL_LEVEL = 224.0, 4
"""A region with this side is looked for on this map of the pyramid, counted from 2 on."""
LEAST_SIDE = 1e-2
"""Least side of a detection."""


def map_of(boxes: Tensor, maps: int) -> Tensor:
    """Return on which of the maps each region is looked for: larger ones on coarser maps."""
    side = (boxes[..., 2:] - boxes[..., :2]).prod(dim=-1).sqrt()
    level = torch.floor(USUAL_LEVEL + torch.log2(side / USUAL) + 1e-6)
    return (level - 2).clamp(0, maps - 1).long()


def pooled(
    maps: Sequence[Tensor], boxes: Tensor, strides: Sequence[int], size: int
) -> tuple[Tensor, Tensor]:
    """Return RoIAlign of regions ``[N, R, 4]``, each on its map: ``[N * R, C, size, size]``.

    They come in the order of their maps: how many there are on each is all that the host has to
    know. The second tensor undoes it, best on what becomes of the regions, which is smaller.
    """
    image = torch.arange(len(boxes), device=boxes.device, dtype=boxes.dtype)
    image = image[:, None, None].expand(-1, boxes.shape[1], 1)
    regions = torch.cat([image, boxes], dim=2).flatten(0, 1)
    level = map_of(boxes, len(maps)).flatten()
    order = level.argsort(stable=True)
    counts = (level == torch.arange(len(maps), device=level.device)[:, None]).sum(dim=1).tolist()
    ordered = torch.split(regions.index_select(0, order), counts)
    align: Any = vision().ops.roi_align
    pieces = [
        align(values, rois, (size, size), 1 / stride, 0)
        for values, rois, stride in zip(maps, ordered, strides, strict=True)
    ]
    return torch.cat(pieces), order.argsort()


@dataclass(frozen=True, eq=False)
class Detections:
    """What is found in a batch, best first; images with less than others are padded."""

    boxes: Tensor
    """``[N, D, 4]``."""
    labels: Tensor
    """int64 ``[N, D]``."""
    scores: Tensor
    """``[N, D]``."""
    counts: Tensor
    """int64 ``[N]``: how many of each image are no padding."""

    def cpu(self) -> "Detections":
        """Return them in the memory of the host, in fp32."""
        return Detections(
            self.boxes.float().cpu(),
            self.labels.cpu(),
            self.scores.float().cpu(),
            self.counts.cpu(),
        )

    def listed(self) -> list[dict[str, Tensor]]:
        """Return per image ``boxes``, ``labels`` and ``scores``."""
        return [
            {"boxes": boxes[:n], "labels": labels[:n], "scores": scores[:n]}
            for boxes, labels, scores, n in zip(
                self.boxes, self.labels, self.scores, self.counts.tolist(), strict=True
            )
        ]


def detected(
    scores: Tensor, boxes: Tensor, valid: Tensor, *, least: float, overlap: float, most: int
) -> Detections:
    """Return the best boxes of all classes, after NMS in each class of each image.

    Args:
        scores: probabilities ``[N, R, C]`` of regions, the background left out.
        boxes: ``[N, R, C, 4]``.
        valid: which regions count, ``[N, R]``.
        least: score that a detection must exceed.
        overlap: largest one of two detections of one class.
        most: detections of an image.
    """
    images, regions, classes = scores.shape
    sure = (scores > least) & valid[..., None] & large(boxes, LEAST_SIDE)
    rated = torch.where(sure, scores, -1.0).transpose(1, 2).flatten(0, 1)
    ranked, order = rated.sort(dim=1, descending=True, stable=True)
    # Few regions are sure of a class; the others need no comparison.
    longest = max(1, int(sure.sum(dim=1).max()))
    ranked, order = ranked[:, :longest], order[:, :longest]
    candidates = chosen(boxes.transpose(1, 2).flatten(0, 1), order)
    standing = thinned(candidates, ranked > 0, overlap)
    kept = torch.full_like(rated, -1.0).scatter_(1, order, torch.where(standing, ranked, -1.0))
    kept = kept.view(images, classes, regions).transpose(1, 2).flatten(1)
    best, place = kept.sort(dim=1, descending=True, stable=True)
    best, place = best[:, :most], place[:, :most]
    return Detections(
        chosen(boxes.flatten(1, 2), place),
        place % classes + 1,
        best.clamp(min=0),
        (best > 0).sum(dim=1),
    )
