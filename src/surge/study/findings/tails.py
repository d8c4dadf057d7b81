"""Runs with SURGE minus those without, averaged over their last epochs.

Bits still flip while the learning rate goes to zero, and a test after one epoch or the next differs
by tenths of a point: the mean over some is a steadier witness.
"""

from collections.abc import Sequence
from pathlib import Path
from statistics import fmean

from surge.study.findings import findings
from surge.study.statistics import Estimate, estimate
from surge.study.stored_runs import StoredRun, arms, number, ordered, without_surge
from surge.study.tables import difference_cell

NETWORK = "cifar10-resnet20-600ep"
WINDOWS = (1, 5, 10, 50)
"""Epochs at the end that are averaged over."""


def tail(run: StoredRun, epochs: int) -> float | None:
    """Return the mean of the metric over the tests in the last epochs, if there are any."""
    found = [number(row.get(run.metric)) for row in run.epochs[-epochs:]]
    values = [value for value in found if value is not None]
    return fmean(values) if values else None


def difference(
    runs: Sequence[StoredRun], plain: Sequence[StoredRun], epochs: int
) -> Estimate | None:
    """Estimate the difference of the tails over the seeds that both have.

    A pair has the same arithmetic, and a seed is one pair.
    """
    others = {(run.seed, run.precision): tail(run, epochs) for run in plain}
    pairs = {
        run.seed: mine - other
        for run in runs
        if (mine := tail(run, epochs)) is not None
        and (other := others.get((run.seed, run.precision))) is not None
    }
    return estimate(list(pairs.values())) if pairs else None


def section(folder: Path) -> str:
    """Return a table: one row per arm with SURGE, one column per window."""
    stored = ordered(findings.read(folder).runs)
    found = arms([run for run in stored if run.network == NETWORK and run.finished])
    head = ["minus plain, 95 %", "last epoch", *(f"mean of the last {n}" for n in WINDOWS[1:])]
    lines = [f"| {' | '.join(head)} |", f"| --- |{' ---: |' * len(WINDOWS)}"]
    for arm, runs in found.items():
        base = without_surge(arm)
        if base is None:
            continue
        cells = [difference_cell(difference(runs, found.get(base, []), n)) for n in WINDOWS]
        lines.append(f"| {' | '.join([arm.partition('-')[2], *cells])} |")
    return "\n".join(lines) + "\n" if len(lines) > 2 else "Nothing is stored yet.\n"
