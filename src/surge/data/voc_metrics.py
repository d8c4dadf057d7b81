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


def overlap(box: Numbers, others: Numbers) -> Numbers:
    """Return intersection over union of one box and ``[n, 4]`` others."""
    low, high = np.maximum(box[:2], others[:, :2]), np.minimum(box[2:], others[:, 2:])
    shared = np.clip(high - low, 0, None).prod(axis=1)
    area = (box[2:] - box[:2]).prod() + (others[:, 2:] - others[:, :2]).prod(axis=1)
    whole = area - shared
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
    if len(detections) != len(truths):
        raise ConfigError(f"{len(detections)} images with detections, {len(truths)} with truths.")
    found = [_arrays(d, ("boxes", "labels", "scores")) for d in detections]
    there = [_arrays(t, ("boxes", "labels", "difficult")) for t in truths]
    average = eleven_points if style == "07" else area
    values = []
    for label in range(1, classes + 1):
        count = sum(int((t["labels"] == label)[~t["difficult"].astype(bool)].sum()) for t in there)
        if not count:
            values.append(float("nan"))
            continue
        right, wrong = _judged(found, there, label)
        hits, misses = np.cumsum(right), np.cumsum(wrong)
        precision = hits / np.maximum(hits + misses, 1)
        values.append(average(hits / count, precision))
    counted = [value for value in values if not np.isnan(value)]
    return Precision(float(np.mean(counted)) if counted else float("nan"), tuple(values))


def _arrays(entry: Mapping[str, Any], keys: Sequence[str]) -> dict[str, Numbers]:
    return {key: np.asarray(entry[key], dtype=np.float64) for key in keys}


def _judged(
    found: Sequence[dict[str, Numbers]], there: Sequence[dict[str, Numbers]], label: int
) -> tuple[Numbers, Numbers]:
    """Return for the detections of a class, best first, whether they are right and wrong."""
    mine = [
        (image, i) for image, f in enumerate(found) for i in np.flatnonzero(f["labels"] == label)
    ]
    mine.sort(key=lambda place: -found[place[0]]["scores"][place[1]])
    objects = [t["boxes"].reshape(-1, 4)[t["labels"] == label] for t in there]
    difficult = [t["difficult"][t["labels"] == label].astype(bool) for t in there]
    taken = [np.zeros(len(boxes), dtype=bool) for boxes in objects]
    right, wrong = np.zeros(len(mine)), np.zeros(len(mine))
    for place, (image, index) in enumerate(mine):
        shares = overlap(found[image]["boxes"][index], objects[image])
        best = int(shares.argmax()) if len(shares) else -1
        if best < 0 or shares[best] < OVERLAP:
            wrong[place] = 1
        elif not difficult[image][best]:
            wrong[place] = taken[image][best]
            right[place] = not taken[image][best]
            taken[image][best] = True
    return right, wrong
