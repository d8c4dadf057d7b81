"""What a detector is made of: its numbers, what a forward pass gives, torchvision's parts."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor, nn

from surge.errors import ConfigError
from surge.models.detection_heads import ProposalHead, RegionHead, RegionPredictor
from surge.models.pyramid import STRIDES, PyramidBackbone
from surge.models.vision_ops import vision

Target = Mapping[str, Tensor]
"""``boxes`` float ``[n, 4]`` (x1, y1, x2, y2 in pixels), ``labels`` int64 ``[n]`` from 1 on."""
RATIOS = (0.5, 1.0, 2.0)
"""Heights over widths of the anchors."""
ANCHOR_SCALE = 8
"""Side of a square anchor in pixels of its map."""
REGION = 7
"""Side of a pooled region."""


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
class Batch:
    """Images of one size, and how large each is without its padding."""

    tensors: Tensor
    """``[N, 3, H, W]``."""
    image_sizes: list[tuple[int, int]]
    """(height, width) of each."""


@dataclass(frozen=True, eq=False)
class Proposals:
    """What the first head says."""

    boxes: list[Tensor]
    """Per image ``[n, 4]``, best first, without gradient."""
    scores: list[Tensor]
    """Per image ``[n]`` in [0, 1], without gradient."""
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
    detections: list[dict[str, Tensor]] = field(default_factory=list)
    """In eval mode: per image ``boxes``, ``labels`` and ``scores``, best first."""


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
    sizes = tuple((ANCHOR_SCALE * stride,) for stride in STRIDES)
    return detection.FasterRCNN(
        backbone,
        rpn_anchor_generator=detection.rpn.AnchorGenerator(sizes, (RATIOS,) * len(sizes)),
        rpn_head=ProposalHead(channels, len(RATIOS), activation),
        rpn_pre_nms_top_n_train=settings.candidates[0],
        rpn_pre_nms_top_n_test=settings.candidates[1],
        rpn_post_nms_top_n_train=settings.proposals,
        rpn_post_nms_top_n_test=settings.proposals,
        rpn_nms_thresh=settings.proposal_nms,
        rpn_fg_iou_thresh=0.7,
        rpn_bg_iou_thresh=0.3,
        rpn_batch_size_per_image=settings.sampled_anchors,
        rpn_positive_fraction=0.5,
        box_roi_pool=pool,
        box_head=RegionHead(channels * REGION**2, settings.hidden, linear_activation),
        box_predictor=RegionPredictor(settings.hidden, classes),
        box_score_thresh=settings.score,
        box_nms_thresh=settings.nms,
        box_detections_per_img=settings.detections,
        box_fg_iou_thresh=0.5,
        box_bg_iou_thresh=0.5,
        box_batch_size_per_image=settings.sampled_regions,
        box_positive_fraction=0.25,
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
