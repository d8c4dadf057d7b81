"""The official metrics of GLUE, in percent, and its averages."""

from collections.abc import Callable, Mapping

import numpy as np
from numpy.typing import NDArray

from surge.errors import ConfigError

Numbers = NDArray[np.float64]


def accuracy(predictions: Numbers, labels: Numbers) -> float:
    """Return the share of right answers.

    >>> accuracy(np.array([1.0, 0.0]), np.array([1.0, 1.0]))
    50.0
    """
    return 100.0 * float((predictions == labels).mean())


def f1(predictions: Numbers, labels: Numbers) -> float:
    """Return F1 of class 1; 0 where neither side has that class."""
    hits = float(((predictions == 1) & (labels == 1)).sum())
    named = float((predictions == 1).sum() + (labels == 1).sum())
    return 100.0 * 2 * hits / named if named else 0.0


def matthews(predictions: Numbers, labels: Numbers) -> float:
    """Return the Matthews correlation of two classes; 0 where one side names only one class."""
    return _correlation(predictions, labels)


def pearson(predictions: Numbers, labels: Numbers) -> float:
    """Return the linear correlation; 0 where one side is constant."""
    return _correlation(predictions, labels)


def spearman(predictions: Numbers, labels: Numbers) -> float:
    """Return the correlation of ranks, equal values sharing their mean rank."""
    return _correlation(_ranks(predictions), _ranks(labels))


def pearson_spearman(predictions: Numbers, labels: Numbers) -> float:
    """Return the mean of both correlations."""
    return (pearson(predictions, labels) + spearman(predictions, labels)) / 2


METRICS: dict[str, Callable[[Numbers, Numbers], float]] = {
    m.__name__: m for m in (accuracy, f1, matthews, pearson, spearman, pearson_spearman)
}


def _correlation(a: Numbers, b: Numbers) -> float:
    if (a == a[:1]).all() or (b == b[:1]).all():
        return 0.0  # rounding of their means must not make equal numbers differ
    a, b = a - a.mean(), b - b.mean()
    scale = float(np.sqrt((a**2).sum() * (b**2).sum()))
    return 100.0 * float((a * b).sum()) / scale if scale else 0.0


def _ranks(values: Numbers) -> Numbers:
    _, place, counts = np.unique(values, return_inverse=True, return_counts=True)
    last = np.cumsum(counts)
    return (last - (counts - 1) / 2)[place]


def score(metric: str, logits: Numbers, labels: Numbers) -> float:
    """Return a metric for the outputs ``[examples, classes]`` of a classifier, or of a scorer."""
    return METRICS[metric](answers(logits), labels)


def answers(logits: Numbers) -> Numbers:
    """Return the likeliest class of every example, or the only output."""
    return logits[:, 0] if logits.shape[1] == 1 else logits.argmax(axis=1).astype(np.float64)


COLUMNS = ("mnli", "mnli-mm", "qqp", "qnli", "sst2", "cola", "stsb", "mrpc", "rte")


def averages(scores: Mapping[str, float]) -> tuple[float, float]:
    """Return the averages over 9 columns and over 8 tasks (MNLI's two parts as one).

    The two differ by up to one point, and published tables mix them.

    >>> paper = (77.3, 77.5, 87.1, 86.2, 88.6, 24.1, 71.7, 80.6, 60.6)
    >>> nine, eight = averages(dict(zip(COLUMNS, paper)))
    >>> round(nine, 2), round(eight, 2)
    (72.63, 72.04)
    """
    missing = [name for name in COLUMNS if name not in scores]
    if missing:
        raise ConfigError(f"A GLUE average needs all 9 columns; missing: {', '.join(missing)}.")
    values = [scores[name] for name in COLUMNS]
    merged = [(values[0] + values[1]) / 2, *values[2:]]
    return sum(values) / len(values), sum(merged) / len(merged)
