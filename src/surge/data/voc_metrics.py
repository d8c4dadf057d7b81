"""Mean average precision as PASCAL VOC counts it, in percent."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from surge.errors import ConfigError

Numbers = NDArray[np.float64]

OVERLAP = 0.5
"""A detection is right if it overlaps an object of its class by at least this much."""


@dataclass(frozen=True)
class Precision:
    """Average precisions, in percent."""

    mean: float
    """Over the classes that have objects."""
    classes: tuple[float, ...]
    """Of label 1, 2, ...; NaN for a class without objects."""


def overlap(ours: Numbers, others: Numbers) -> Numbers:
    """Return intersection over union, ``[n, m]``, of boxes ``[n, 4]`` and ``[m, 4]``."""
    low = np.maximum(ours[:, None, :2], others[None, :, :2])
    high = np.minimum(ours[:, None, 2:], others[None, :, 2:])
    shared = np.clip(high - low, 0, None).prod(axis=2)
    areas = [(boxes[:, 2:] - boxes[:, :2]).prod(axis=1) for boxes in (ours, others)]
    whole = areas[0][:, None] + areas[1] - shared
    shares: Numbers = np.divide(shared, whole, out=np.zeros_like(shared), where=whole > 0)
    return shares


def eleven_points(recall: Numbers, precision: Numbers) -> float:
    """Return VOC2007's average: the best precision at a recall of at least 0, 0.1, ..., 1."""
    best = [precision[recall >= point / 10].max(initial=0.0) for point in range(11)]
    return 100.0 * float(np.mean(best))


def area(recall: Numbers, precision: Numbers) -> float:
    """Return the average since VOC2010: the area below the curve, made falling."""
    falling = np.maximum.accumulate(precision[::-1])[::-1]
    return 100.0 * float((np.diff(recall, prepend=0.0) * falling).sum())


def average_precision(
    detections: Sequence[Mapping[str, Any]],
    truths: Sequence[Mapping[str, Any]],
    classes: int,
    *,
    style: str = "07",
) -> Precision:
    """Return the average precision of every class, and their mean.

    Per class, detections of all images are gone through by falling score. One is right if the
    object it overlaps most is overlapped by at least half and not yet found; if that object is
    marked difficult it does not count at all; otherwise it is wrong.

    Args:
        detections: per image ``boxes [n, 4]``, ``labels [n]``, ``scores [n]``.
        truths: per image ``boxes``, ``labels`` and ``difficult [n]``.
        classes: labels are 1 to this.
        style: ``"07"``, eleven points, or ``"area"``.
    """
    if style not in ("07", "area"):
        raise ConfigError(f'style={style!r} is not known. Accepted: "07", "area".')
    return both_precisions(detections, truths, classes)[style == "area"]


def both_precisions(
    detections: Sequence[Mapping[str, Any]], truths: Sequence[Mapping[str, Any]], classes: int
) -> tuple[Precision, Precision]:
    """Return :func:`average_precision` by eleven points, and by the area."""
    if len(detections) != len(truths):
        raise ConfigError(f"{len(detections)} images with detections, {len(truths)} with truths.")
    table = _Matches(detections, truths)
    values = []
    for label in range(1, classes + 1):
        count = int(((table.objects == label) & ~table.difficult).sum())
        if not count:
            values.append((float("nan"), float("nan")))
            continue
        right, wrong = table.judged(label)
        hits, misses = np.cumsum(right), np.cumsum(wrong)
        precision = hits / np.maximum(hits + misses, 1)
        values.append((eleven_points(hits / count, precision), area(hits / count, precision)))
    eleven, areas = (tuple(pair[kind] for pair in values) for kind in (0, 1))
    return _mean(eleven), _mean(areas)


def _mean(values: tuple[float, ...]) -> Precision:
    counted = [value for value in values if not np.isnan(value)]
    return Precision(float(np.mean(counted)) if counted else float("nan"), values)


class _Matches:
    """All detections and all objects, and which object each detection overlaps most."""

    def __init__(
        self, detections: Sequence[Mapping[str, Any]], truths: Sequence[Mapping[str, Any]]
    ) -> None:
        def joined(entries: Sequence[Mapping[str, Any]], key: str) -> Numbers:
            parts = [np.asarray(entry[key], dtype=np.float64) for entry in entries]
            return np.concatenate(parts) if parts else np.zeros(0)

        self.labels, self.scores = joined(detections, "labels"), joined(detections, "scores")
        self.objects = joined(truths, "labels")
        self.difficult = joined(truths, "difficult").astype(bool)
        self.best = np.full(len(self.labels), -1, dtype=np.int64)
        """The object of its class that a detection overlaps enough, or -1."""
        first = before = 0
        for detection, truth in zip(detections, truths, strict=True):
            boxes, others = (
                np.asarray(entry["boxes"], dtype=np.float64).reshape(-1, 4)
                for entry in (detection, truth)
            )
            mine, theirs = slice(first, first + len(boxes)), slice(before, before + len(others))
            if len(boxes) and len(others):
                same = self.labels[mine, None] == self.objects[None, theirs]
                shares = np.where(same, overlap(boxes, others), -1.0)
                enough = shares.max(axis=1) >= OVERLAP
                self.best[mine] = np.where(enough, before + shares.argmax(axis=1), -1)
            first, before = mine.stop, theirs.stop

    def judged(self, label: int) -> tuple[Numbers, Numbers]:
        """Return for the detections of a class, best first, whether they are right and wrong."""
        mine = np.flatnonzero(self.labels == label)
        mine = mine[np.argsort(-self.scores[mine], kind="stable")]
        best = self.best[mine]
        hard = (best >= 0) & self.difficult[best] if len(self.difficult) else best >= 0
        right = np.zeros(len(mine))
        _, firsts = np.unique(best, return_index=True)
        right[firsts] = 1.0
        right[(best < 0) | hard] = 0.0
        return right, (1.0 - right) * ~hard
