"""Faster R-CNN with a ResNet-18 and a feature pyramid, as IDa-Det has it; plain float models.

What becomes binary is chosen by names, in the two stages of the recipe::

    detector = reactnet_detector(classes=20)
    surge.binarize_(detector, "reactnet", only=detector_scope("backbone"))    # stage A
    surge.binarize_(detector, "reactnet", only=detector_scope("whole"))       # stage B

Always float: the stem, the 1x1 convolutions of shortcuts, and the last layers of both heads.

Paper vs here: anchors are rounded to whole pixels, RoIAlign is not shifted by half a pixel and
every class has a box of its own, the background included, as torchvision has it.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from torch import Tensor, nn

from surge.data.batch import Batch
from surge.errors import ConfigError
from surge.models.backbone import BackboneReport, load_backbone_
from surge.models.box_targets import (
    REGION_WEIGHTS,
    Objects,
    Target,
    anchors_to_learn,
    objects_of,
    regions_to_learn,
)
from surge.models.boxes import chosen, clipped, decoded
from surge.models.detection_heads import flat_predictions, proposal_losses, region_losses
from surge.models.detections import Detections, detected, pooled
from surge.models.detector_parts import (
    REGION,
    DetectorSettings,
    Look,
    Proposals,
    anchors_of,
    assemble,
    corners,
    proposed,
)
from surge.models.imagenet import reactnet_resnet18
from surge.models.parts import check_classes, check_option
from surge.models.plain_resnet import resnet18
from surge.models.pyramid import (
    STRIDES,
    Body,
    FeaturePyramid,
    PyramidBackbone,
    pad_together,
    parts_of,
)

BACKBONE_SCOPE = ("backbone.body.stages.*.conv",)
"""Stage A: the 16 convolutions of the body's blocks."""
WHOLE_SCOPE = (*BACKBONE_SCOPE, "backbone.fpn.*", "rpn.head.conv")
"""Stage B: those of the pyramid and of the first head, too."""
LINEAR_SCOPE = ("roi_heads.box_head.fc*",)
"""The two shared linear layers, by flag."""


class Detector(nn.Module):
    """Faster R-CNN. In training it returns four named losses, in eval mode detections.

    Args:
        body: a ResNet-18; its classifier is dropped.
        classes: kinds of objects; label 0 is the background.
        settings: numbers.
        lateral: side of the pyramid's lateral kernels.
        activation: ``prelu`` for a 1-bit detector, ``relu`` for a float one, in pyramid (where a
            float one has none) and heads.
        binary_linear: the shared linear layers may become binary; they then have PReLUs, too.
        loss_weight: factor of all four losses: 5 for the 1-bit student.
        frozen: 1 keeps the stem and the first stage as they are loaded, 2 the second, too.
        norm_eval: the BatchNorms of ``body`` keep their statistics in training.
    """

    def __init__(
        self,
        body: Body,
        classes: int,
        settings: DetectorSettings | None = None,
        *,
        lateral: int,
        activation: str,
        binary_linear: bool = False,
        loss_weight: float = 1.0,
        frozen: int = 0,
        norm_eval: bool = False,
    ) -> None:
        super().__init__()
        check_classes(classes)
        if not 0 <= frozen <= 4:
            raise ConfigError(f"frozen={frozen} is not accepted: 0 to 4 stages.")
        self.settings = settings or DetectorSettings()
        self.classes = classes
        self.binary_linear = binary_linear
        self.loss_weight = loss_weight
        self.frozen = frozen
        self.norm_eval = norm_eval
        after_conv = "prelu" if activation == "prelu" else "none"
        fpn = FeaturePyramid(self.settings.channels, lateral=lateral, activation=after_conv)
        whole = assemble(
            PyramidBackbone(body, fpn),
            classes,
            self.settings,
            activation=activation,
            linear_activation="prelu" if binary_linear else "relu",
        )
        self.backbone: PyramidBackbone = whole.backbone
        self.rpn: Any = whole.rpn
        self.roi_heads: Any = whole.roi_heads
        self.freeze_()

    def freeze_(self) -> None:
        """Take the gradient from the frozen stages; again after ``binarize_``, which adds some."""
        stem, stages = parts_of(self.backbone.body)
        for module in [*stem, *stages[: self.frozen]] if self.frozen else []:
            module.requires_grad_(False)

    def train(self, mode: bool = True) -> "Detector":
        """Set the mode; BatchNorms of the body stay in eval mode where that is asked for."""
        super().train(mode)
        if self.norm_eval:
            for module in self.backbone.body.modules():
                if isinstance(module, nn.BatchNorm2d):
                    module.eval()
        return self

    def forward(
        self, images: Sequence[Tensor] | Batch, targets: Sequence[Target] | None = None
    ) -> dict[str, Tensor] | list[dict[str, Tensor]]:
        """Return losses in training, else detections in pixels of the images given.

        Args:
            images: normalised, ``[3, H, W]`` each; they are padded here, if they are not yet.
            targets: what is in them; needed in training.
        """
        look = self.look(images, targets)
        return look.losses if look.found is None else look.found.listed()

    def look(
        self, images: Sequence[Tensor] | Batch, targets: Sequence[Target] | None = None
    ) -> Look:
        """Return all that :meth:`forward` computes on its way: for distillation, in one pass."""
        batch, pyramid = self.pyramid(images)
        proposals = self.propose(batch, pyramid)
        if not self.training:
            return Look(batch, pyramid, proposals, found=self._detect(batch, pyramid, proposals))
        losses = self._losses(pyramid, proposals, objects_of(targets, len(batch)))
        return Look(batch, pyramid, proposals, {n: self.loss_weight * v for n, v in losses.items()})

    def pyramid(self, images: Sequence[Tensor] | Batch) -> tuple[Batch, dict[str, Tensor]]:
        """Return the padded batch and its five maps."""
        batch = pad_together(images)
        return batch, self.backbone(batch.tensors)

    def propose(self, batch: Batch, pyramid: Mapping[str, Tensor]) -> Proposals:
        """Return the proposals on maps that :meth:`pyramid` made; nothing is computed twice."""
        maps = list(pyramid.values())
        objectness, deltas = flat_predictions(*self.rpn.head(maps))
        shapes = tuple((values.shape[2], values.shape[3]) for values in maps)
        anchors, counts = anchors_of(shapes, maps[0].device)
        settings = self.settings
        found = proposed(
            objectness,
            deltas,
            anchors,
            counts,
            corners(batch),
            candidates=settings.candidates[0 if self.training else 1],
            overlap=settings.proposal_nms,
            most=settings.proposals,
        )
        return Proposals(*found, objectness, deltas, anchors)

    def _losses(
        self,
        pyramid: dict[str, Tensor],
        proposals: Proposals,
        objects: Objects,
    ) -> dict[str, Tensor]:
        settings = self.settings
        places, positive, moves, counted = anchors_to_learn(
            proposals.anchors, objects, settings.sampled_anchors
        )
        losses = proposal_losses(
            chosen(proposals.objectness, places),
            chosen(proposals.deltas, places),
            positive,
            moves,
            counted,
        )
        regions, labels, moves, counted = regions_to_learn(
            proposals.boxes, proposals.valid, objects, settings.sampled_regions
        )
        scores, boxes = self._second(pyramid, regions)
        return losses | region_losses(
            scores, boxes, labels.flatten(), moves.flatten(0, 1), counted.flatten()
        )

    def _detect(self, batch: Batch, pyramid: dict[str, Tensor], proposals: Proposals) -> Detections:
        scores, deltas = self._second(pyramid, proposals.boxes)
        shape = (*proposals.scores.shape, self.classes + 1)
        # Label 0 is the background.
        moves = deltas.view(*shape, 4)[:, :, 1:]
        boxes = decoded(moves, proposals.boxes[:, :, None], REGION_WEIGHTS)
        settings = self.settings
        return detected(
            scores.softmax(dim=-1).view(shape)[:, :, 1:],
            clipped(boxes, corners(batch)[:, None]),
            proposals.valid,
            least=settings.score,
            overlap=settings.nms,
            most=settings.detections,
        )

    def _second(self, pyramid: dict[str, Tensor], regions: Tensor) -> tuple[Tensor, Tensor]:
        heads = self.roi_heads
        maps = [pyramid[str(level)] for level in range(4)]
        seen, back = pooled(maps, regions, STRIDES[:4], REGION)
        scores, boxes = heads.box_predictor(heads.box_head(seen))
        return scores.float().index_select(0, back), boxes.float().index_select(0, back)


def reactnet_detector(
    classes: int = 20,
    settings: DetectorSettings | None = None,
    *,
    moved: bool = False,
    binary_linear: bool = False,
    loss_weight: float = 5.0,
    frozen: int = 0,
    norm_eval: bool = False,
) -> Detector:
    """Build what becomes the 1-bit detector: ReActNet's ResNet-18, 3x3 laterals, PReLUs.

    ``moved`` puts thresholds into the blocks of the body, for a method that has none.
    """
    return Detector(
        reactnet_resnet18(classes=1, moved=moved),
        classes,
        settings,
        lateral=3,
        activation="prelu",
        binary_linear=binary_linear,
        loss_weight=loss_weight,
        frozen=frozen,
        norm_eval=norm_eval,
    )


def float_detector(
    classes: int = 20,
    settings: DetectorSettings | None = None,
    *,
    loss_weight: float = 1.0,
    frozen: int = 0,
    norm_eval: bool = False,
) -> Detector:
    """Build the float reference and teacher: the plain ResNet-18, 1x1 laterals, ReLUs."""
    return Detector(
        resnet18(classes=1),
        classes,
        settings,
        lateral=1,
        activation="relu",
        loss_weight=loss_weight,
        frozen=frozen,
        norm_eval=norm_eval,
    )


def detector_scope(stage: str, *, binary_linear: bool = False) -> tuple[str, ...]:
    """Return the ``only=`` of a stage of :func:`reactnet_detector`, as patterns over names.

    >>> detector_scope("backbone")
    ('backbone.body.stages.*.conv',)
    """
    check_option("stage", stage, ("backbone", "whole"))
    if stage == "backbone":
        return BACKBONE_SCOPE
    return WHOLE_SCOPE + (LINEAR_SCOPE if binary_linear else ())


def load_body_(detector: Detector, state: Mapping[str, Tensor]) -> BackboneReport:
    """Copy a pretrained ResNet-18 into the body, in place; see :func:`load_backbone_`.

    Names may be those of torchvision, or those of the body itself: what a run of this package
    stored, the tensors of a method included, if the body is binary in the same way.
    """
    return load_backbone_(detector.backbone.body, state)
