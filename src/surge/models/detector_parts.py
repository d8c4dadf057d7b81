"""What a detector is made of: its numbers, what a forward pass gives, torchvision's parts."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor, nn

from surge.data.batch import Batch
from surge.errors import ConfigError
from surge.models.box_targets import (
    ANCHOR_OVERLAPS,
    ANCHOR_SHARE,
    ANCHOR_WEIGHTS,
    REGION_OVERLAP,
    REGION_SHARE,
)
from surge.models.boxes import chosen, clipped, decoded, large, thinned_levels
from surge.models.detection_heads import ProposalHead, RegionHead, RegionPredictor
from surge.models.detections import Detections
from surge.models.pyramid import STRIDES, PyramidBackbone
from surge.models.vision_ops import vision

RATIOS = (0.5, 1.0, 2.0)
"""Heights over widths of the anchors."""
ANCHOR_SCALE = 8
"""Side of a square anchor in pixels of its map."""
REGION = 7
"""Side of a pooled region."""
LEAST_SIDE = 1e-3
"""Least side of a proposal."""


@dataclass(frozen=True)
class DetectorSettings:
    """The numbers of the recipe; a smaller detector for tests has smaller ones."""

    channels: int = 256
    """Width of the five maps."""
    hidden: int = 1024
    """Width of the shared linear layers."""
    candidates: tuple[int, int] = (2000, 1000)
    """Best anchors of each map that enter NMS: in training, in a test."""
    proposals: int = 1000
    """Regions of an image that leave it."""
    proposal_nms: float = 0.7
    """Overlap above which the worse of two proposals goes."""
    sampled_anchors: int = 256
    """Anchors of an image that train the first head, half of them on objects if there are."""
    sampled_regions: int = 512
    """Regions of an image that train the second head, a quarter of them on objects."""
    score: float = 0.05
    """Least score of a detection."""
    nms: float = 0.5
    """Overlap above which the worse of two detections of a class goes."""
    detections: int = 100
    """Most detections of an image."""

    def __post_init__(self) -> None:
        """Check the numbers."""
        for name in ("channels", "hidden", "proposals", "sampled_anchors", "sampled_regions"):
            if getattr(self, name) < 1:
                raise ConfigError(f"{name}={getattr(self, name)} is not accepted: at least 1.")


@dataclass(frozen=True, eq=False)
class Proposals:
    """What the first head says."""

    boxes: Tensor
    """``[N, P, 4]``, best first, without gradient."""
    scores: Tensor
    """``[N, P]`` in [0, 1], without gradient."""
    valid: Tensor
    """``[N, P]``: which of them are no padding; that comes last, and is zero."""
    objectness: Tensor
    """Logits ``[N, A]`` of all anchors, with gradient."""
    deltas: Tensor
    """``[N, A, 4]``: how they move, with gradient."""
    anchors: Tensor
    """``[A, 4]``, the same for every image."""


@dataclass(frozen=True, eq=False)
class Look:
    """Everything that one forward pass gives."""

    batch: Batch
    pyramid: dict[str, Tensor]
    """The five maps by name, ``"0"`` the finest."""
    proposals: Proposals
    losses: dict[str, Tensor] = field(default_factory=dict)
    """In training: four by name, weighted."""
    found: Detections | None = None
    """In eval mode: what is in the images."""


def _anchor_generator() -> Any:
    sizes = tuple((ANCHOR_SCALE * stride,) for stride in STRIDES)
    return vision().models.detection.rpn.AnchorGenerator(sizes, (RATIOS,) * len(sizes))


@lru_cache(maxsize=64)
def anchors_of(
    shapes: tuple[tuple[int, int], ...], device: torch.device
) -> tuple[Tensor, tuple[int, ...]]:
    """Return the anchors ``[A, 4]`` of maps of these shapes, and how many are on each."""
    generator = _anchor_generator()
    generator.set_cell_anchors(torch.float32, device)
    levels = generator.grid_anchors(shapes, [(stride, stride) for stride in STRIDES])
    return torch.cat(levels), tuple(len(level) for level in levels)


def corners(batch: Batch) -> Tensor:
    """Return the lower right corner of every image twice, ``[N, 1, 4]``."""
    sides = [[[width, height] * 2] for height, width in batch.image_sizes]
    return torch.tensor(sides, dtype=torch.float32).to(batch.tensors.device, non_blocking=True)


@torch.no_grad()
def proposed(
    objectness: Tensor,
    deltas: Tensor,
    anchors: Tensor,
    counts: Sequence[int],
    corner: Tensor,
    *,
    candidates: int,
    overlap: float,
    most: int,
) -> tuple[Tensor, Tensor, Tensor]:
    """Return boxes, scores and which are there: the best of every map, thinned out within it.

    Args:
        objectness: logits ``[N, A]``.
        deltas: ``[N, A, 4]``.
        anchors: ``[A, 4]``.
        counts: anchors of each map.
        corner: of :func:`corners`.
        candidates: most anchors of a map.
        overlap: largest one of two proposals.
        most: proposals of an image.
    """
    taken = [min(candidates, count) for count in counts]
    before = [sum(counts[:level]) for level in range(len(counts))]
    levels = zip(torch.split(objectness, list(counts), 1), taken, before, strict=True)
    places = torch.cat([logits.topk(k, dim=1).indices + n for logits, k, n in levels], dim=1)
    scores = chosen(objectness, places).sigmoid()
    boxes = clipped(decoded(chosen(deltas, places), anchors[places], ANCHOR_WEIGHTS), corner)
    standing = thinned_levels(boxes, large(boxes, LEAST_SIDE), taken, overlap)
    rated = torch.where(standing, scores, -1.0)
    best, order = rated.sort(dim=1, descending=True, stable=True)
    best, order = best[:, :most], order[:, :most]
    valid = best >= 0
    return torch.where(valid[..., None], chosen(boxes, order), 0.0), best.clamp(min=0), valid


def assemble(
    backbone: PyramidBackbone,
    classes: int,
    settings: DetectorSettings,
    *,
    activation: str,
    linear_activation: str,
) -> Any:
    """Return torchvision's Faster R-CNN with our backbone and heads."""
    package = vision()
    detection = package.models.detection
    channels = settings.channels
    pool = package.ops.MultiScaleRoIAlign([str(n) for n in range(4)], REGION, sampling_ratio=0)
    # It would guess both from the first batch it meets, and from small images wrongly.
    pool.scales = [1 / stride for stride in STRIDES[:4]]
    pool.map_levels = package.ops.poolers.initLevelMapper(2, 5)
    return detection.FasterRCNN(
        backbone,
        rpn_anchor_generator=_anchor_generator(),
        rpn_head=ProposalHead(channels, len(RATIOS), activation),
        rpn_pre_nms_top_n_train=settings.candidates[0],
        rpn_pre_nms_top_n_test=settings.candidates[1],
        rpn_post_nms_top_n_train=settings.proposals,
        rpn_post_nms_top_n_test=settings.proposals,
        rpn_nms_thresh=settings.proposal_nms,
        rpn_fg_iou_thresh=ANCHOR_OVERLAPS[0],
        rpn_bg_iou_thresh=ANCHOR_OVERLAPS[1],
        rpn_batch_size_per_image=settings.sampled_anchors,
        rpn_positive_fraction=ANCHOR_SHARE,
        box_roi_pool=pool,
        box_head=RegionHead(channels * REGION**2, settings.hidden, linear_activation),
        box_predictor=RegionPredictor(settings.hidden, classes),
        box_score_thresh=settings.score,
        box_nms_thresh=settings.nms,
        box_detections_per_img=settings.detections,
        box_fg_iou_thresh=REGION_OVERLAP,
        box_bg_iou_thresh=REGION_OVERLAP,
        box_batch_size_per_image=settings.sampled_regions,
        box_positive_fraction=REGION_SHARE,
    )


class CountedDetector(nn.Module):
    """A detector as tables count it: one image of any size, a fixed number of regions, no NMS.

    Example:
        ``summary(CountedDetector(detector), torch.zeros(1, 3, 600, 1000)).ops``
    """

    def __init__(self, detector: Any, regions: int = 1000) -> None:
        super().__init__()
        self.backbone: nn.Module = detector.backbone
        self.rpn: nn.Module = detector.rpn
        self.roi_heads: nn.Module = detector.roi_heads
        self.regions = regions

    def forward(self, images: Tensor) -> list[Any]:
        """Run every weighted layer on inputs of the right shapes."""
        maps = list(self.backbone(images).values())
        heads: Any = self.roi_heads
        pooled = maps[0].new_zeros(self.regions, maps[0].shape[1], REGION, REGION)
        proposed = self.rpn.get_submodule("head")(maps)
        return [proposed, heads.box_predictor(heads.box_head(pooled))]
