"""What the paper says about its toy problem, each sentence answered over all seeds.

Every answer is a difference between two arms that started the same, seed by seed: its mean, the
95 % interval, and Cohen's d of paired differences (mean / standard deviation).

log10 final loss  mean of log10 loss over the last tenth of the steps; other final values alike
late drift        change of the scale between the last two eighths of the steps, over its level
relative spread   standard deviation / mean of the norm after the first quarter of the steps
loss jumps        mean change of log10 loss from step to step, in the second half
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from surge.study.statistics import estimate
from surge.study.theory.toy import LAYERS, Array, Log

FLOOR = 1e-12
"""A loss below this counts as this: float32 has no more to say."""
DRIFT_LIMIT = 0.1
"""A scale that moves less than this share of itself in the last quarter has converged."""

BASES = ("STE", "Bi-Real")
"""The arms that exist with and without SURGE."""

Logs = Mapping[str, Log]


@dataclass(frozen=True)
class Claim:
    """One sentence of the paper with its answer."""

    claim: str
    layer: str
    """``hidden``, ``output``, or ``-`` where it is about the whole network."""
    measure: str
    first: str
    """The arm the claim is about."""
    second: str
    """The arm, or the limit, it is compared with."""
    value: float
    """Mean of the first over the seeds."""
    reference: float
    """Mean of the second."""
    difference: float
    low: float
    high: float
    effect: float | None
    """Cohen's d of the paired differences; None where they do not spread at all."""
    n: int
    shown_by: int
    """How many seeds have the claimed sign by themselves."""
    verdict: str
    """``supported``, ``opposite`` (the interval lies on the other side), ``not supported``."""


def final_loss(log: Log) -> Array:
    """Return log10 of the loss of every seed, averaged over the last tenth of the steps."""
    return _tail(np.log10(np.maximum(log.loss, FLOOR)))


def volatility(log: Log) -> Array:
    """Return the mean step-to-step change of log10 loss in the second half."""
    late = np.log10(np.maximum(log.loss[len(log.loss) // 2 :], FLOOR))
    return _mean(np.abs(np.diff(late, axis=0)))


def wander(series: Array) -> Array:
    """Return standard deviation / mean of a series after its first quarter."""
    late = series[len(series) // 4 :]
    spread: Array = late.std(axis=0) / late.mean(axis=0)
    return spread


def drift(series: Array) -> Array:
    """Return how far a series moves between the last two eighths, relative to its level there."""
    eighth = max(len(series) // 8, 1)
    before, after = _mean(series[-2 * eighth : -eighth]), _mean(series[-eighth:])
    moved: Array = np.abs(after - before) / np.maximum((after + before) / 2, 1e-30)
    return moved


def _mean(series: Array) -> Array:
    mean: Array = series.mean(axis=0)
    return mean


def _tail(series: Array) -> Array:
    return _mean(series[-max(len(series) // 10, 1) :])


def judge(logs: Logs) -> tuple[Claim, ...]:
    """Answer every claim, in the order of the paper's text."""
    return (*_lower_loss(logs), *_scale_converges(logs), *_parameters(logs), *_noise(logs))


def _lower_loss(logs: Logs) -> Iterator[Claim]:
    for base in BASES:
        names = ("lower loss", "-", "log10 final loss", f"{base}+SURGE", base)
        yield _answer(names, final_loss(logs[names[3]]), final_loss(logs[base]), sign=-1)


def _scale_converges(logs: Logs) -> Iterator[Claim]:
    for base in BASES:
        arm = f"{base}+SURGE"
        for number, layer in enumerate(LAYERS):
            moved = drift(logs[arm].scale[:, :, number])
            names = (
                "scale converges",
                layer,
                "late drift",
                arm,
                f"limit {DRIFT_LIMIT:g}",
            )
            yield _answer(names, moved, np.full_like(moved, DRIFT_LIMIT), sign=-1)


def _parameters(logs: Logs) -> Iterator[Claim]:
    claims: Sequence[tuple[str, str, str, Callable[[Array], Array], int]] = (
        ("larger weight norm", "final norm of W", "norm_main", _tail, 1),
        ("steadier weight norm", "relative spread", "norm_main", wander, -1),
        ("higher alpha_w", "final alpha_w", "alpha_w", _tail, 1),
        ("higher alpha_a", "final alpha_a", "alpha_a", _tail, 1),
    )
    for claim, measure, series, rule, sign in claims:
        for base in BASES:
            for number, layer in enumerate(LAYERS):
                names = (claim, layer, measure, f"{base}+SURGE", base)
                first, second = (rule(getattr(logs[a], series)[:, :, number]) for a in names[3:])
                yield _answer(names, first, second, sign=sign)


def _noise(logs: Logs) -> Iterator[Claim]:
    for claim, measure, rule in (
        ("noise ends worse", "log10 final loss", final_loss),
        ("noise is more volatile", "loss jumps", volatility),
    ):
        for other in ("STE+SURGE", "STE"):
            names = (claim, "-", measure, "STE+Noise", other)
            yield _answer(names, rule(logs["STE+Noise"]), rule(logs[other]), sign=1)


def _answer(
    names: tuple[str, str, str, str, str], first: Array, second: Array, *, sign: int
) -> Claim:
    """Judge ``first - second`` over the seeds; the claim is that it has this sign."""
    found = estimate((first - second).tolist())
    low, high = found.interval
    effect = found.mean / found.std if found.std > 0 else None
    means = (float(first.mean()), float(second.mean()))
    shown_by = int((sign * (first - second) > 0).sum())
    verdict = _verdict(sign * low, sign * high)
    return Claim(*names, *means, found.mean, low, high, effect, found.n, shown_by, verdict)


def _verdict(end: float, other_end: float) -> str:
    """Judge an interval of a difference that the claim says is positive.

    >>> _verdict(0.1, 0.4), _verdict(-0.1, 0.4), _verdict(-0.1, -0.2)
    ('supported', 'not supported', 'opposite')
    """
    low, high = sorted((end, other_end))
    return "supported" if low > 0 else "opposite" if high < 0 else "not supported"


def representative(logs: Logs) -> int:
    """Return the seed at which STE+SURGE minus STE, in final loss, is the median one."""
    difference = final_loss(logs["STE+SURGE"]) - final_loss(logs["STE"])
    return int(np.argsort(difference)[(len(difference) - 1) // 2])
