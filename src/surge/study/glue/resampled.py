"""GLUE's metrics of many resampled dev sets at once, from how often each example was drawn.

A resampled set is a column of ``counts [examples, draws]``. Every function returns what
:mod:`surge.data.glue_metrics` gives for the examples written out as often as they were drawn.
"""

from collections.abc import Callable
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from surge.data.glue_metrics import METRICS, Numbers
from surge.errors import ConfigError

Kinds = NDArray[np.intp]

NEARLY_CONSTANT = 1e-6
"""Share of the variance of a whole set below which sums do not tell a variance from rounding."""


def scores(metric: str, answers: Numbers, labels: Numbers, counts: Numbers) -> Numbers:
    """Return a metric in percent ``[runs, draws]``, of ``answers [runs, examples]``.

    >>> right = np.array([[1.0, 0.0, 1.0]])
    >>> scores("accuracy", right, np.ones(3), np.array([[1.0, 0.0], [1.0, 3.0], [2.0, 1.0]]))
    array([[75., 25.]])
    """
    if metric not in RESAMPLED:
        raise ConfigError(f'No metric "{metric}" can be resampled; known: {", ".join(RESAMPLED)}.')
    return RESAMPLED[metric](answers, labels, counts)


def _accuracy(answers: Numbers, labels: Numbers, counts: Numbers) -> Numbers:
    share: Numbers = (answers == labels) @ counts / counts.sum(axis=0)
    return 100.0 * share


def _f1(answers: Numbers, labels: Numbers, counts: Numbers) -> Numbers:
    hits: Numbers = ((answers == 1) & (labels == 1)) @ counts
    named: Numbers = (answers == 1) @ counts + (labels == 1) @ counts
    return np.divide(200.0 * hits, named, out=np.zeros_like(hits), where=named > 0)


def _pearson(answers: Numbers, labels: Numbers, counts: Numbers) -> Numbers:
    """Use sums of products around the means of the whole set, which lose no digits.

    Where next to nothing but one value was drawn they would: those sets are written out.
    """
    size = counts.sum(axis=0)
    a, b = answers - answers.mean(axis=1, keepdims=True), labels - labels.mean()
    mean_a, mean_b = (a @ counts) / size, (b @ counts) / size
    var_a, var_b = (a**2 @ counts) / size - mean_a**2, (b**2 @ counts) / size - mean_b**2
    covariance = ((a * b) @ counts) / size - mean_a * mean_b
    flat_a = var_a <= NEARLY_CONSTANT * (a**2).mean(axis=1, keepdims=True)
    flat = flat_a | (var_b <= NEARLY_CONSTANT * (b**2).mean())
    found: Numbers = np.zeros_like(covariance)
    np.divide(100.0 * covariance, np.sqrt(np.abs(var_a * var_b)), out=found, where=~flat)
    # Where the whole set has one answer, or one label, all draws have 0 and need no look.
    varied = (answers != answers[:, :1]).any(axis=1, keepdims=True) & (labels != labels[0]).any()
    for run, draw in np.argwhere(flat & varied):
        times = counts[:, draw].astype(np.int64)
        found[run, draw] = METRICS["pearson"](
            np.repeat(answers[run], times), np.repeat(labels, times)
        )
    return found


def _spearman(answers: Numbers, labels: Numbers, counts: Numbers) -> Numbers:
    kind, drawn, ranks = _ranked(labels, counts)
    square = (drawn * ranks**2).sum(axis=0)
    weighted = counts * ranks[kind]
    found = np.zeros((len(answers), counts.shape[1]))
    for run, values in enumerate(answers):
        kind, drawn, ranks = _ranked(values, counts)
        scale = np.sqrt((drawn * ranks**2).sum(axis=0) * square)
        product = (_gathered(weighted, kind) * ranks).sum(axis=0)
        np.divide(100.0 * product, scale, out=found[run], where=scale > 0)
    return found


def _ranked(values: Numbers, counts: Numbers) -> tuple[Kinds, Numbers, Numbers]:
    """Return the kind of every example, by its value, and of kinds ``[kinds, draws]`` two things.

    These are how often one was drawn, and its rank less the mean of all ranks; equal values share
    their mean rank. All numbers are halves, and exact.
    """
    kind = np.unique(values, return_inverse=True)[1]
    drawn = _gathered(counts, kind)
    upto = drawn.copy()
    for below, own in pairwise(upto):  # np.cumsum takes several times as long
        own += below
    return kind, drawn, upto - (drawn + upto[-1]) / 2


def _gathered(weights: Numbers, kind: Kinds) -> Numbers:
    """Return the sum of the weights ``[examples, draws]`` of every kind of example."""
    sorted_weights = weights[np.argsort(kind, kind="stable")]
    occurrences = np.bincount(kind)
    if len(occurrences) == len(kind):
        return sorted_weights
    sums: Numbers = np.add.reduceat(sorted_weights, np.cumsum(occurrences) - occurrences, axis=0)
    return sums


def _both(answers: Numbers, labels: Numbers, counts: Numbers) -> Numbers:
    return (_pearson(answers, labels, counts) + _spearman(answers, labels, counts)) / 2


RESAMPLED: dict[str, Callable[[Numbers, Numbers, Numbers], Numbers]] = {
    "accuracy": _accuracy,
    "f1": _f1,
    "matthews": _pearson,
    "pearson": _pearson,
    "spearman": _spearman,
    "pearson_spearman": _both,
}
"""The same names as in :data:`surge.data.glue_metrics.METRICS`."""
