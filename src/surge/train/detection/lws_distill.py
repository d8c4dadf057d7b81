r"""LWS-Det's distillation: every 1-bit layer is held close to the teacher's, and so are features.

With a, w the teacher's inputs and weights, A, B the student's binary ones, per image::

    angular      sum over filters and places of (y / (|a| |w|) - Y / (|A| |B|))^2
    amplitude    mean of (y - alpha Y)^2
    weight       mean of (w - alpha B)^2
    imitation    sum of (T - S)^2 m / (2 sum of m), m under anchors close to an object

where y is the convolution of a with w, Y that of A with B, and norms are those of an image's whole
input and of a filter. The paper's weights of these terms are not known; ours are in
:class:`LayerWeights`.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from surge.layers.base import BinaryLayer
from surge.methods.lws import LWS
from surge.models.box_targets import Objects
from surge.models.boxes import overlaps

NEAR = 0.5
"""Share of the best overlap with an object from which an anchor is close to it."""


@dataclass(frozen=True)
class LayerWeights:
    """How much each term counts; all are chosen here."""

    angular: float = 1.0
    amplitude: float = 0.01
    weight: float = 1.0
    imitation: float = 0.01


def _norms(x: Tensor) -> Tensor:
    lengths: Tensor = torch.linalg.vector_norm(x.float().flatten(1), dim=1)
    return lengths.clamp(min=1e-12)


def angular_loss(
    output: Tensor,
    inputs: Tensor,
    weight: Tensor,
    student_output: Tensor,
    student_inputs: Tensor,
    student_weight: Tensor,
    alpha: Tensor | None = None,
) -> Tensor:
    """Return the squared distance of both outputs, each over its factors' norms; mean of images.

    Where the student's output holds a scale ``alpha`` per filter, that is taken out.
    """

    def direction(y: Tensor, a: Tensor, lengths: Tensor) -> Tensor:
        both: Tensor = _norms(a)[:, None] * lengths
        return y.float() / both[:, :, None, None]

    theirs = _norms(student_weight)
    apart = direction(output, inputs, _norms(weight)) - direction(
        student_output, student_inputs, theirs if alpha is None else theirs * alpha
    )
    return apart.square().sum() / len(apart)


def amplitude_loss(output: Tensor, scaled: Tensor) -> Tensor:
    """Return the mean squared distance of the teacher's output and the student's, scaled."""
    return (output.float() - scaled.float()).square().mean()


def weight_loss(weight: Tensor, binary: Tensor, alpha: Tensor) -> Tensor:
    """Return the mean squared distance of the teacher's weight and ``alpha * binary``."""
    return (weight - alpha.view(-1, *(1,) * (binary.dim() - 1)) * binary).square().mean()


def near_anchors(anchors: Tensor, objects: Objects) -> Tensor:
    """Return which of A anchors overlap an object at least half as much as the best, ``[N, A]``."""
    overlap = overlaps(objects.boxes, anchors[None])
    near = overlap > NEAR * overlap.amax(dim=2, keepdim=True)
    return (near & objects.present[..., None]).any(dim=1)


def near_masks(
    anchors: Tensor, objects: Objects, shapes: Sequence[tuple[int, int]]
) -> list[Tensor]:
    """Return for each map of ``shapes`` where some anchor is near an object, ``[N, h, w]``.

    ``anchors`` are those of all maps, those of one place side by side.
    """
    near = near_anchors(anchors, objects)
    places = [height * width for height, width in shapes]
    kinds = near.shape[1] // sum(places)
    parts = torch.split(near, [kinds * count for count in places], dim=1)
    return [
        part.view(len(near), height, width, kinds).any(dim=3).float()
        for part, (height, width) in zip(parts, shapes, strict=True)
    ]


def imitation_loss(student: Tensor, teacher: Tensor, mask: Tensor) -> Tensor:
    """Return the loss of one level; ``mask`` is ``[N, h, w]``."""
    squared = (teacher.float() - student.float()).square().sum(dim=1)
    return (squared * mask).sum() / (2 * mask.sum()).clamp(min=1)


@dataclass
class Seen:
    """What one layer did in the last forward."""

    inputs: Tensor
    output: Tensor


class LayerWatch:
    """Keeps input and output of layers of a model while it runs, by name.

    Of a layer that runs several times, as the proposal head does on every map, the first counts.
    """

    def __init__(self, layers: Sequence[tuple[str, nn.Module]]) -> None:
        """Begin to look, but only while ``open``: tests run through the same layers."""
        self.seen: dict[str, Seen] = {}
        self.open = False
        for name, layer in layers:

            def note(_module: nn.Module, args: tuple[Tensor], y: Tensor, name: str = name) -> None:
                if self.open:
                    self.seen.setdefault(name, Seen(args[0], y))

            layer.register_forward_hook(note)

    def take(self) -> dict[str, Seen]:
        """Return what was seen, and forget it: it holds a graph."""
        seen, self.seen = self.seen, {}
        return seen


def layer_loss(layer: BinaryLayer, student: Seen, taught: nn.Conv2d, teacher: Seen) -> Tensor:
    """Return the weighted sum of the three losses of one layer, bias aside on both sides."""
    weights = LayerWeights()
    method = layer.method
    assert isinstance(method, LWS) and method.used is not None
    alpha, binary = method.output_scale(), method.used
    scaled, taught_output = (
        y if bias is None else y - bias.view(-1, 1, 1).to(y.dtype)
        for y, bias in ((student.output, layer.bias), (teacher.output, taught.bias))
    )
    # Inputs are all -1 or +1: their length is known without them.
    signs = student.inputs.new_ones(()).expand_as(student.inputs)
    # A scale that learned to be zero has no direction.
    known = torch.where(alpha.abs() < 1e-6, 1.0, alpha)
    angular = angular_loss(
        taught_output, teacher.inputs, taught.weight, scaled, signs, binary, known
    )
    return (
        weights.angular * angular
        + weights.amplitude * amplitude_loss(taught_output, scaled)
        + weights.weight * weight_loss(taught.weight, binary, alpha)
    )


def pair_layers(student: nn.Module, teacher: nn.Module) -> list[tuple[str, str]]:
    """Return names of (1-bit layer, teacher's layer), all of one shape.

    Layers of one name belong together. Others, where both networks write the same convolutions into
    other blocks, are paired in order.
    """
    ours = {n: m for n, m in student.named_modules() if isinstance(m, BinaryLayer)}
    theirs = {n: m for n, m in teacher.named_modules() if isinstance(m, nn.Conv2d)}
    every = {name for name, _ in student.named_modules()}
    others = iter([name for name in theirs if name not in every])
    pairs = []
    for name, layer in ours.items():
        found = [name] if name in theirs else others
        for other in found:
            if theirs[other].weight.shape == layer.weight.shape:
                pairs.append((name, other))
                break
    return pairs
