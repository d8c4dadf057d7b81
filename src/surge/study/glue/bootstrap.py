"""Intervals of a difference between two arms by bootstrap, over examples and seeds.

A dev set is a sample, and so are the seeds: both are drawn anew, with replacement. Both arms and
all seeds of a task see the same drawn examples, because they see the same dev set; a drawn seed is
one of both arms. Every task is drawn by itself, and all count alike.

How much of a variance such draws show, with S seeds and N examples (Owen, "The pigeonhole
bootstrap", Annals of Applied Statistics 2007):

    between seeds              (S - 1) / S of it: with few seeds, intervals are too narrow
    between examples           (N - 1) / N of it
    within (seed, example)     nearly three times of it: intervals are too wide where it prevails
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from surge.data.glue_metrics import METRICS, Numbers
from surge.errors import ConfigError
from surge.study.glue.resampled import scores

DRAWS = 10_000
SEED = 0
LEVEL = 95
"""Percent of the draws that lie within an interval."""
AT_ONCE = 2**20
"""Examples times draws that are worked on at once, at most 512 draws: what a cache holds."""


@dataclass(frozen=True, eq=False)
class Compared:
    """What two arms answered on the dev set of one task."""

    task: str
    metric: str
    labels: Numbers
    """``[examples]``"""
    ours: Numbers
    """``[seeds, examples]``: classes, or scores."""
    theirs: Numbers
    """The same of the other arm, seed by seed."""

    def __post_init__(self) -> None:
        """Check that there is something to compare, and that shapes agree."""
        wanted = (len(self.ours), len(self.labels))
        if not all(wanted) or self.ours.shape != wanted or self.theirs.shape != wanted:
            raise ConfigError(
                f"{self.task}: answers of two arms must be [seeds, examples] for "
                f"{len(self.labels)} labels, got {list(self.ours.shape)} and "
                f"{list(self.theirs.shape)}."
            )


@dataclass(frozen=True, eq=False)
class Drawn:
    """The difference of two arms on one task, as it is and in every draw."""

    compared: Compared
    difference: float
    draws: Numbers


@dataclass(frozen=True)
class Difference:
    """A difference in points, the mean over tasks, with its 95 % interval."""

    mean: float
    interval: tuple[float, float]
    seeds: tuple[int, ...]
    """Of each task; where there is one, the interval is over examples only."""
    examples: int
    """Of all tasks together."""

    @property
    def n(self) -> int:
        """Pairs of runs."""
        return sum(self.seeds)


def draw(compared: Compared, *, draws: int = DRAWS, seed: int = SEED) -> Drawn:
    """Return the difference on one task, ours minus theirs, and what it is in every draw."""
    c = compared
    metric, pairs = METRICS[c.metric], zip(c.ours, c.theirs, strict=True)
    own = [metric(ours, c.labels) - metric(theirs, c.labels) for ours, theirs in pairs]
    found = []
    for seeds, examples in resamples(c.task, c.ours.shape, draws, seed):
        ours, theirs = (scores(c.metric, a, c.labels, examples) for a in (c.ours, c.theirs))
        found.append(((ours - theirs) * seeds).sum(axis=0) / len(c.ours))
    return Drawn(c, float(np.mean(own)), np.concatenate(found))


def resamples(
    task: str, shape: tuple[int, ...], draws: int, seed: int
) -> Iterator[tuple[Numbers, Numbers]]:
    """Yield how often each seed ``[seeds, draws]`` and each example ``[examples, draws]`` is drawn.

    The numbers depend on the task alone: they are the same for all arms, in whatever order.
    """
    of_seeds, of_examples = (
        np.random.default_rng([seed, kind, *task.encode()]) for kind in range(2)
    )
    runs, size = shape
    most = min(512, max(1, AT_ONCE // size))
    for start in range(0, draws, most):
        width = min(most, draws - start)
        yield _counts(of_seeds, runs, width), _counts(of_examples, size, width)


def _counts(generator: np.random.Generator, size: int, draws: int) -> Numbers:
    chosen: NDArray[np.int64] = generator.integers(0, size, (size, draws))
    places = chosen * draws + np.arange(draws)
    counts = np.bincount(places.ravel(), minlength=size * draws)
    return counts.reshape(size, draws).astype(np.float64)


def pooled(drawn: Sequence[Drawn]) -> Difference:
    """Return the mean over tasks with its interval, or that of a single task."""
    values = np.mean([one.draws for one in drawn], axis=0)
    low, high = np.percentile(values, [(100 - LEVEL) / 2, (100 + LEVEL) / 2])
    return Difference(
        float(np.mean([one.difference for one in drawn])),
        (float(low), float(high)),
        tuple(len(one.compared.ours) for one in drawn),
        sum(len(one.compared.labels) for one in drawn),
    )
