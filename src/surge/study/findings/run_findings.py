"""What stored runs of one network say about a claim: accuracies, gradients, weights, flips."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from statistics import fmean

from surge.study.findings.findings import (
    NOT,
    OPEN,
    OPPOSITE,
    REPRODUCED,
    Measured,
    Stored,
    difference_of,
)
from surge.study.statistics import estimate
from surge.study.stored_runs import StoredRun, number

Measure = Callable[[Stored], Measured]


@dataclass(frozen=True)
class Network:
    """Which stored runs: those of a row, its form with SURGE, and the noise control."""

    words: str
    """How the page calls it."""
    row: str
    """The recipe without SURGE."""
    network: str
    """As :attr:`StoredRun.network` has it."""

    def runs(self, stored: Stored, suffix: str) -> list[StoredRun]:
        """Return the finished runs of the row with a suffix, one of each seed."""
        found = {run.seed: run for run in stored.arm(self.row + suffix, self.network)}
        return list(found.values())

    def paired(
        self,
        value: Callable[[StoredRun], float | None],
        *,
        minus: str = "",
        claimed: int = 1,
    ) -> Measure:
        """Measure a number with SURGE minus the same of another arm, seed by seed, in points.

        A pair has the same arithmetic.
        """

        def measure(stored: Stored) -> Measured:
            ours, theirs = (
                {
                    (run.seed, run.precision): got
                    for run in self.runs(stored, arm)
                    if (got := value(run)) is not None
                }
                for arm in ("-surge", minus)
            )
            return difference_of(ours, theirs, claimed=claimed)

        return measure

    def level(self, key: str, low: float, high: float, *, part: str = "layers") -> Measure:
        """Measure the mean of a recorded number, and whether its interval lies where it should."""

        def measure(stored: Stored) -> Measured:
            found = [over_records(run, key, part=part) for run in self.runs(stored, "-surge")]
            values = [value for value in found if value is not None]
            if len(values) < 3:
                return too_few(values, "{:.3g}")
            mean = estimate(values)
            ends = mean.interval
            words = f"{mean.mean:.3g} [{ends[0]:.3g}, {ends[1]:.3g}], n = {mean.n} runs"
            inside = low <= ends[0] and ends[1] <= high
            below_zero = low > 0 and ends[1] < 0
            return Measured(words, REPRODUCED if inside else OPPOSITE if below_zero else NOT)

        return measure

    def near_optimum(self, stored: Stored) -> Measured:
        """Whether AGS's scale is better than none in more than half of all layers and records."""
        found = [shares for run in self.runs(stored, "-surge") if (shares := optimum_shares(run))]
        better, positive = [b for b, _ in found], [p for _, p in found]
        form = "better than none in {:.0f} % of layers and records"
        if len(found) < 3:
            return too_few(better, form)
        low, high = estimate(better).interval
        ends = f"[{max(low, 0):.0f}, {min(high, 100):.0f}]"
        words = f"{form.format(fmean(better))} {ends}, the best scale positive in "
        words += f"{fmean(positive):.0f} %, n = {len(found)} runs"
        return Measured(words, REPRODUCED if low > 50 else NOT)


def too_few(values: list[float], form: str) -> Measured:
    """Say what one or two runs gave: no interval, no verdict."""
    if not values:
        return Measured("nothing stored yet", OPEN)
    mean = form.format(sum(values) / len(values))
    return Measured(f"{mean} ({len(values)} run{'s' * (len(values) > 1)}: too few)", OPEN)


def optimum_shares(run: StoredRun) -> tuple[float, float] | None:
    """Return how often the scale in use is better than none, and the best one positive, in percent.

    With the scale s, ``g_b + s g_a`` is closer to g* than g_b if s lies between 0 and twice the
    best one. Of a direction that points nowhere the best scale is positive half of the time.
    """
    found = [
        (layer["scale"], layer["paired"])
        for record in run.records
        for layer in record.get("theorem", {}).values()
        if layer["paired"] is not None
    ]
    if not found:
        return None
    better = sum(0 < scale < 2 * best for scale, best in found)
    positive = sum(best > 0 for _, best in found)
    return 100 * better / len(found), 100 * positive / len(found)


def near_zero(run: StoredRun) -> float | None:
    """Return the share of weights near zero in the last record, in percent."""
    layers = run.records[-1]["layers"].values() if run.records else ()
    shares = [100 * layer["near_zero"] for layer in layers]
    return sum(shares) / len(shares) if shares else None


def flips(run: StoredRun) -> float | None:
    """Return the share of bits that flip in an epoch of the second half, in percent."""
    late = [number(row.get("flips")) for row in run.epochs[len(run.epochs) // 2 :]]
    known = [value for value in late if value is not None]
    return sum(known) / len(known) if known else None


def over_records(run: StoredRun, key: str, *, part: str = "layers") -> float | None:
    """Return the mean of a recorded number over layers and recorded epochs."""
    found = [
        number(layer.get(key)) for record in run.records for layer in record.get(part, {}).values()
    ]
    known = [value for value in found if value is not None]
    return sum(known) / len(known) if known else None
