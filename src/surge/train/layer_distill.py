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
    return torch.linalg.vector_norm(x.float().flatten(1), dim=1).clamp(min=1e-12)


def angular_loss(
    output: Tensor,
    inputs: Tensor,
    weight: Tensor,
    student_output: Tensor,
    student_inputs: Tensor,
    student_weight: Tensor,
) -> Tensor:
    """Return the squared distance of both outputs, each over its factors' norms; mean of images."""

    def direction(y: Tensor, a: Tensor, w: Tensor) -> Tensor:
        lengths: Tensor = _norms(a)[:, None] * _norms(w)
        return y.float() / lengths[:, :, None, None]

    apart = direction(output, inputs, weight) - direction(
        student_output, student_inputs, student_weight
    )
    return apart.square().sum() / len(apart)


def amplitude_loss(output: Tensor, scaled: Tensor) -> Tensor:
    """Return the mean squared distance of the teacher's output and the student's, scaled."""
    return (output.float() - scaled.float()).square().mean()


def weight_loss(weight: Tensor, binary: Tensor, alpha: Tensor) -> Tensor:
    """Return the mean squared distance of the teacher's weight and ``alpha * binary``."""
    return (weight - alpha.view(-1, *(1,) * (binary.dim() - 1)) * binary).square().mean()


def overlaps(boxes: Tensor, others: Tensor) -> Tensor:
    """Return the intersection over union of all pairs of boxes, ``[A, B]``."""
    low = torch.maximum(boxes[:, None, :2], others[None, :, :2])
    high = torch.minimum(boxes[:, None, 2:], others[None, :, 2:])
    shared = (high - low).clamp(min=0).prod(dim=2)
    area, other = ((b[:, 2:] - b[:, :2]).prod(dim=1) for b in (boxes, others))
    return shared / (area[:, None] + other[None] - shared).clamp(min=1e-12)


def near_mask(anchors: Tensor, objects: Tensor, shape: tuple[int, int]) -> Tensor:
    """Return ``[h, w]``: 1 where an anchor overlaps an object at least half as much as the best.

    ``anchors`` is ``[h w k, 4]``, those of one place side by side.
    """
    if len(objects) == 0:
        return anchors.new_zeros(shape)
    overlap = overlaps(anchors, objects)
    best = overlap.amax(dim=0, keepdim=True)
    near = (overlap > NEAR * best).any(dim=1)
    return near.view(*shape, -1).any(dim=2).float()


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
    """Keeps input and output of layers of a model while it runs, by name."""

    def __init__(self, layers: Sequence[tuple[str, nn.Module]]) -> None:
        """Begin to look; nothing is kept before the first forward."""
        self.seen: dict[str, Seen] = {}
        for name, layer in layers:

            def note(_module: nn.Module, args: tuple[Tensor], y: Tensor, name: str = name) -> None:
                if torch.is_grad_enabled() or not _module.training:
                    self.seen[name] = Seen(args[0], y)

            layer.register_forward_hook(note)

    def take(self) -> dict[str, Seen]:
        """Return what was seen, and forget it: it holds a graph."""
        seen, self.seen = self.seen, {}
        return seen


def layer_loss(layer: BinaryLayer, student: Seen, taught: nn.Conv2d, teacher: Seen) -> Tensor:
    """Return the weighted sum of the three losses of one layer, bias aside on both sides."""
    weights = LayerWeights()
    method = layer.method
    alpha = method.output_scale()
    binary = method.binarize_weight(layer.weight)
    assert alpha is not None
    scaled, taught_output = (
        y if bias is None else y - bias.view(-1, 1, 1).to(y.dtype)
        for y, bias in ((student.output, layer.bias), (teacher.output, taught.bias))
    )
    signs = method.binarize(method.prepare_input(student.inputs))
    # Y without alpha: a scale that learned to be zero has no direction.
    plain = scaled.float() / torch.where(alpha.abs() < 1e-6, 1.0, alpha).view(-1, 1, 1)
    angular = angular_loss(
        taught_output, teacher.inputs, taught.weight, plain, signs.detach(), binary
    )
    return (
        weights.angular * angular
        + weights.amplitude * amplitude_loss(taught_output, scaled)
        + weights.weight * weight_loss(taught.weight, binary, alpha)
    )


def pair_layers(student: nn.Module, teacher: nn.Module) -> list[tuple[str, str]]:
    """Return names of (1-bit layer, teacher's layer): convolutions of one shape, in order.

    Networks that write the same convolutions into other blocks pair all the same.
    """
    ours = [(n, m) for n, m in student.named_modules() if isinstance(m, nn.Conv2d)]
    theirs = [(n, m) for n, m in teacher.named_modules() if isinstance(m, nn.Conv2d)]
    pairs: list[tuple[str, str]] = []
    begin = 0
    for name, layer in ours:
        for place in range(begin, len(theirs)):
            other, found = theirs[place]
            if found.weight.shape == layer.weight.shape and found.stride == layer.stride:
                if isinstance(layer, BinaryLayer):
                    pairs.append((name, other))
                begin = place + 1
                break
    return pairs
