"""Means, spreads and intervals over seeds, with Student's t and no further dependency."""

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Estimate:
    """A mean over ``n`` values with its spread and 95 % interval."""

    n: int
    mean: float
    std: float
    """Standard deviation of the values; 0 for a single one."""
    half_width: float
    """Half of the 95 % interval; infinite for a single value."""

    @property
    def interval(self) -> tuple[float, float]:
        """The two ends of the 95 % interval."""
        return self.mean - self.half_width, self.mean + self.half_width


def estimate(values: Sequence[float]) -> Estimate:
    """Estimate a mean.

    >>> e = estimate([1.0, 2.0, 3.0])
    >>> e.mean, e.std, round(e.half_width, 3)
    (2.0, 1.0, 2.484)
    """
    n = len(values)
    std = statistics.stdev(values) if n > 1 else 0.0
    half = t_quantile(0.975, n - 1) * std / math.sqrt(n) if n > 1 else math.inf
    return Estimate(n, statistics.fmean(values), std, half)


def spread(value: Estimate | None) -> str | None:
    """Return mean and standard deviation as text.

    >>> spread(Estimate(3, 97.0, 0.5, 1.2))
    '97.00 ± 0.50'
    """
    if value is None:
        return None
    return f"{value.mean:.2f}" + (f" ± {value.std:.2f}" if value.n > 1 else "")


def t_cdf(x: float, df: int) -> float:
    """Return P(T <= x) of Student's t with a whole number of degrees of freedom.

    The finite sums for odd and even degrees, exact up to rounding.
    """
    theta = math.atan2(x, math.sqrt(df))
    cosine = math.cos(theta)
    if df % 2:
        term, total = cosine, 0.0
        for k in range(1, (df - 1) // 2 + 1):
            total += term
            term *= cosine * cosine * 2 * k / (2 * k + 1)
        area = 2 / math.pi * (theta + math.sin(theta) * total)
    else:
        term, total = 1.0, 0.0
        for k in range(1, df // 2 + 1):
            total += term
            term *= cosine * cosine * (2 * k - 1) / (2 * k)
        area = math.sin(theta) * total
    return 0.5 * (1 + area)


def t_quantile(p: float, df: int) -> float:
    """Return the value below which Student's t stays with probability ``p`` >= 1/2.

    >>> [round(t_quantile(0.975, df), 3) for df in (1, 4, 10)]
    [12.706, 2.776, 2.228]
    """
    low, high = 0.0, 1e9
    for _ in range(100):
        middle = (low + high) / 2
        low, high = (middle, high) if t_cdf(middle, df) < p else (low, middle)
    return (low + high) / 2
