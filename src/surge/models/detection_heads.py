"""The two heads of Faster R-CNN, and the losses that train them."""

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from surge.models.parts import check_option

NONE = -100
"""A label that cross entropy leaves out."""


def _activation(name: str, channels: int) -> nn.Module:
    check_option("activation", name, ("prelu", "relu"))
    return nn.PReLU(channels) if name == "prelu" else nn.ReLU()


class ProposalHead(nn.Module):
    """A 3x3 convolution, then two 1x1: is there an object, and how the anchor must move."""

    def __init__(self, channels: int, anchors: int, activation: str) -> None:
        super().__init__()
        self.conv = nn.Conv2d(channels, channels, 3, padding=1)
        self.act = _activation(activation, channels)
        self.cls_logits = nn.Conv2d(channels, anchors, 1)
        self.bbox_pred = nn.Conv2d(channels, 4 * anchors, 1)
        for layer in (self.conv, self.cls_logits, self.bbox_pred):
            nn.init.normal_(layer.weight, std=0.01)
            assert layer.bias is not None
            nn.init.zeros_(layer.bias)

    def forward(self, maps: Sequence[Tensor]) -> tuple[list[Tensor], list[Tensor]]:
        """Return both for every map."""
        shared = [self.act(self.conv(values)) for values in maps]
        return [self.cls_logits(s) for s in shared], [self.bbox_pred(s) for s in shared]


class RegionHead(nn.Module):
    """The two linear layers that classes and boxes share."""

    def __init__(self, inputs: int, hidden: int, activation: str) -> None:
        super().__init__()
        self.flatten = nn.Flatten()
        self.fc6 = nn.Linear(inputs, hidden)
        self.act6 = _activation(activation, hidden)
        self.fc7 = nn.Linear(hidden, hidden)
        self.act7 = _activation(activation, hidden)
        for layer in (self.fc6, self.fc7):
            nn.init.xavier_uniform_(layer.weight)
            nn.init.zeros_(layer.bias)

    def forward(self, regions: Tensor) -> Tensor:
        """Map ``[K, C, 7, 7]`` to ``[K, hidden]``."""
        x = self.act6(self.fc6(self.flatten(regions)))
        y: Tensor = self.act7(self.fc7(x))
        return y


class RegionPredictor(nn.Module):
    """The last two layers: scores of the classes and the background, a box for each of them."""

    def __init__(self, hidden: int, classes: int) -> None:
        super().__init__()
        self.cls_score = nn.Linear(hidden, classes + 1)
        self.bbox_pred = nn.Linear(hidden, 4 * (classes + 1))
        nn.init.normal_(self.cls_score.weight, std=0.01)
        nn.init.normal_(self.bbox_pred.weight, std=0.001)
        nn.init.zeros_(self.cls_score.bias)
        nn.init.zeros_(self.bbox_pred.bias)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Return both for regions ``[K, hidden]``."""
        return self.cls_score(x), self.bbox_pred(x)


def proposal_losses(
    objectness: Tensor, deltas: Tensor, positive: Tensor, targets: Tensor, counted: Tensor
) -> dict[str, Tensor]:
    """Return cross entropy of the drawn anchors and L1 of those on objects.

    Args:
        objectness: logits ``[N, K]``.
        deltas: ``[N, K, 4]``.
        positive: which are on an object, ``[N, K]``.
        targets: the deltas that would be right there, ``[N, K, 4]``.
        counted: which of all count.
    """
    count = counted.sum().clamp(min=1)
    on = positive & counted
    entropy = F.binary_cross_entropy_with_logits(
        objectness, on.to(objectness.dtype), weight=counted.to(objectness.dtype), reduction="sum"
    )
    return {
        "loss_objectness": entropy / count,
        "loss_rpn_box_reg": _distance(deltas, targets, on) / count,
    }


def region_losses(
    scores: Tensor, boxes: Tensor, labels: Tensor, targets: Tensor, counted: Tensor
) -> dict[str, Tensor]:
    """Return cross entropy of the drawn regions and L1 of the boxes of those on objects.

    Args:
        scores: logits ``[K, classes + 1]``.
        boxes: deltas ``[K, 4 * (classes + 1)]``.
        labels: int64 ``[K]``, 0 the background.
        targets: the deltas that would be right, ``[K, 4]``.
        counted: which of all count, ``[K]``.
    """
    count = counted.sum().clamp(min=1)
    own = labels[:, None, None].expand(-1, 1, 4)
    moves = boxes.view(len(boxes), -1, 4).gather(1, own)[:, 0]
    entropy = F.cross_entropy(scores, torch.where(counted, labels, NONE), reduction="sum")
    return {
        "loss_classifier": entropy / count,
        "loss_box_reg": _distance(moves, targets, counted & (labels > 0)) / count,
    }


def _distance(deltas: Tensor, targets: Tensor, on: Tensor) -> Tensor:
    """Return the sum of absolute differences where there is an object; elsewhere is no target."""
    ours, right = (torch.where(on[..., None], values, 0.0) for values in (deltas, targets))
    return F.l1_loss(ours, right, reduction="sum")


def flat_predictions(
    objectness: Sequence[Tensor], deltas: Sequence[Tensor]
) -> tuple[Tensor, Tensor]:
    """Return the outputs of all maps as ``[N, A]`` and ``[N, A, 4]`` in fp32, anchors last.

    The order is that of the anchors: map, row, column, shape.
    """
    flat = [level.permute(0, 2, 3, 1).flatten(1) for level in objectness]
    moves = [level.permute(0, 2, 3, 1).reshape(len(level), -1, 4) for level in deltas]
    return torch.cat(flat, dim=1).float(), torch.cat(moves, dim=1).float()
