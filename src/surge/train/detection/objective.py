"""What a detector is trained for: its own four losses, and what a teacher adds."""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from surge.models.box_targets import Objects
from surge.models.boxes import thinned
from surge.models.detector import Detector
from surge.models.detector_parts import Look, Proposals
from surge.models.pyramid import STRIDES
from surge.recipes.recipe import DistillSpec
from surge.train.detection.ida_distill import Imitation
from surge.train.detection.lws_distill import (
    LayerWatch,
    LayerWeights,
    imitation_loss,
    layer_loss,
    near_masks,
    pair_layers,
)

SURE = 0.85
"""Least score of a proposal that is looked at for distillation."""
APART = 0.1
"""Overlap above which the worse of two such proposals goes."""
MOST = 64
"""Most such proposals of one image and one detector."""


class DetectionObjective:
    """The sum of the losses that a detector returns in training."""

    learned: nn.Module | None = None
    """What is trained with the student and belongs to the objective."""

    def outputs(self, network: nn.Module, inputs: Any) -> Any:
        """Look at the images; their targets are needed for that already."""
        images, targets = inputs
        assert isinstance(network, Detector)
        return network.look(images, targets)

    def loss(self, outputs: Any, labels: Tensor, inputs: Any) -> Tensor:
        """Add up the losses."""
        return torch.stack([value.float() for value in outputs.losses.values()]).sum()

    def hits(self, outputs: Any, labels: Tensor) -> Tensor:
        """Return none: whether a detection is right is decided over a whole set."""
        return torch.zeros((), device=labels.device)


@dataclass(frozen=True, eq=False)
class Lesson:
    """What student and teacher see in one batch."""

    look: Look
    """All that the student sees."""
    adapted: list[Tensor]
    """Its maps behind their adapters."""
    maps: list[Tensor]
    """The teacher's maps."""
    proposals: Proposals
    """The teacher's proposals."""


class TaughtObjective(DetectionObjective):
    """The same with a float detector as teacher, which stays in eval mode."""

    def __init__(self, student: Detector, teacher: Detector, weight: float) -> None:
        """Freeze the teacher; ``weight`` is that of all that comes from it."""
        self.teacher = teacher.eval().requires_grad_(False)
        self.weight = weight
        device = next(student.parameters()).device
        self.adapters = Imitation(len(STRIDES), student.settings.channels).to(device)
        self.learned = self.adapters

    def outputs(self, network: nn.Module, inputs: Any) -> Any:
        """Let both look; the teacher has nothing to say about classes."""
        with torch.no_grad():
            batch, pyramid = self.teacher.pyramid(inputs[0])
            proposals = self.teacher.propose(batch, pyramid)
        look = super().outputs(network, inputs)
        pairs = zip(self.adapters.adapters, look.pyramid.values(), strict=True)
        adapted = [adapter(values) for adapter, values in pairs]
        return Lesson(look, adapted, list(pyramid.values()), proposals)

    def loss(self, outputs: Any, labels: Tensor, inputs: Any) -> Tensor:
        """Add what comes from the teacher."""
        own = super().loss(outputs.look, labels, inputs)
        return own + self.weight * self.taught(outputs, inputs)

    def taught(self, lesson: Lesson, inputs: Any) -> Tensor:
        """Return the loss between student and teacher."""
        raise NotImplementedError


class IDaObjective(TaughtObjective):
    """IDa-Det: maps are imitated under the proposals in which both differ most."""

    def taught(self, lesson: Lesson, inputs: Any) -> Tensor:
        """Return the entropy loss, a mean over the maps."""
        boxes, valid = confident([lesson.proposals, lesson.look.proposals])
        height, width = lesson.look.batch.tensors.shape[2:]
        loss: Tensor = self.adapters(lesson.adapted, lesson.maps, boxes, valid, (height, width))
        return loss


class LWSObjective(TaughtObjective):
    """LWS-Det: 1-bit layers stay close to the teacher's, and maps where objects are."""

    def __init__(self, student: Detector, teacher: Detector, weight: float) -> None:
        """Begin to watch all pairs of layers."""
        super().__init__(student, teacher, weight)
        self.pairs = [
            (ours, student.get_submodule(ours), theirs, teacher.get_submodule(theirs))
            for ours, theirs in pair_layers(student, teacher)
        ]
        self.ours = LayerWatch([(name, layer) for name, layer, _, _ in self.pairs])
        self.theirs = LayerWatch([(name, layer) for _, _, name, layer in self.pairs])

    def outputs(self, network: nn.Module, inputs: Any) -> Any:
        """Look, and watch the layers meanwhile."""
        for watch in (self.ours, self.theirs):
            watch.take()
            watch.open = True
        try:
            return super().outputs(network, inputs)
        finally:
            self.ours.open = self.theirs.open = False

    def taught(self, lesson: Lesson, inputs: Any) -> Tensor:
        """Return the losses of all layers, a mean, and the imitation of all maps, a mean."""
        ours, theirs = self.ours.take(), self.theirs.take()
        layers = [
            layer_loss(layer, ours[name], taught, theirs[other])  # type: ignore[arg-type]
            for name, layer, other, taught in self.pairs
        ]
        shapes = [(values.shape[2], values.shape[3]) for values in lesson.maps]
        masks = near_masks(lesson.look.proposals.anchors, Objects.of(inputs[1]), shapes)
        triples = zip(lesson.adapted, lesson.maps, masks, strict=True)
        levels = [imitation_loss(s, t, m) for s, t, m in triples]
        return torch.stack(layers).mean() + LayerWeights().imitation * torch.stack(levels).mean()


@torch.no_grad()
def confident(sources: list[Proposals]) -> tuple[Tensor, Tensor]:
    """Return the sure proposals of several detectors side by side: ``[N, P, 4]``, and which count.

    Those of each detector are thinned out by themselves.
    """
    most = min(MOST, *(source.scores.shape[1] for source in sources))
    boxes = torch.cat([source.boxes[:, :most] for source in sources])
    sure = torch.cat([source.scores[:, :most] > SURE for source in sources])
    valid = thinned(boxes, sure, APART).chunk(len(sources))
    return torch.cat(boxes.chunk(len(sources)), dim=1), torch.cat(valid, dim=1)


def make_objective(
    student: Detector, teacher: Detector | None, spec: DistillSpec | None
) -> DetectionObjective:
    """Return the objective of a recipe."""
    if teacher is None or spec is None:
        return DetectionObjective()
    kind = {"ida": IDaObjective, "lws": LWSObjective}[spec.detector or "ida"]
    return kind(student, teacher, spec.hidden)
