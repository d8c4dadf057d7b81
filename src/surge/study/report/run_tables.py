"""The tables about runs: how each stands, and how recipes compare over their seeds."""

from __future__ import annotations

from collections.abc import Sequence

from surge.study.report.page import Badge, Block, Table
from surge.study.results import data_name
from surge.study.statistics import Estimate, estimate, spread
from surge.study.stored_runs import StoredRun, grouped, number, without_surge
from surge.study.tables import paper_figure


def state(run: StoredRun) -> Badge:
    """Say in a few words how a run stands."""
    bad = next(
        (
            row["epoch"] + 1
            for row in run.epochs
            if any(number(row[key]) is None for key in ("train_loss", run.metric) if key in row)
        ),
        None,
    )
    if bad is not None:
        return Badge(f"not finite in epoch {bad}", "bad")
    if not run.epochs:
        return Badge("no epoch yet")
    if not run.finished:
        return Badge(f"{len(run.epochs)} of {run.recipe.train.epochs} epochs")
    return Badge("finished", "good")


def final_estimate(runs: Sequence[StoredRun]) -> Estimate | None:
    """Estimate the metric after the last epoch, over finished runs."""
    values = [run.last for run in runs if run.finished and run.last is not None]
    return estimate(values) if values else None


def compared(runs: Sequence[StoredRun]) -> list[Block]:
    """Return mean, spread and paired interval of every recipe, on every part of the data."""
    found = grouped(runs, lambda run: (run.arm, run.network, run.data))
    rows = []
    for (arm, network, data), held in found.items():
        last = final_estimate(held)
        best = [run.best for run in held if run.finished and run.best is not None]
        difference = paired(held, found.get((without_surge(arm) or "", network, data), []))
        rows.append(
            {
                "arm": arm,
                "data": data,
                "epochs": max(run.recipe.train.epochs for run in held),
                "paper": _paper(held[0]),
                "last": spread(last),
                "best": spread(estimate(best) if best else None),
                "n": last.n if last else 0,
                "difference": _interval(difference),
                "verdict": verdict(difference),
                "seconds": _seconds(sum(run.seconds for run in held) / len(held)),
            }
        )
    columns = {
        "arm": "recipe",
        "epochs": "epochs",
        "data": "tested on",
        "paper": "paper",
        "last": "last epoch",
        "best": "best epoch",
        "n": "n",
        "difference": "minus its base [95 %]",
        "verdict": "verdict",
        "seconds": "seconds",
    }
    if not any(row["paper"] is not None for row in rows):
        del columns["paper"]
    note = (
        "Finished runs alone: mean ± standard deviation over n seeds. The difference is a recipe "
        "with SURGE minus the same without it, paired by seed; it counts once its interval leaves "
        "out zero. One pair has no interval."
    )
    if any(run.recipe.train.test_every for run in runs):
        note += (
            " Runs on GLUE are also tested within epochs; the best of those tests is in the stored "
            "results, and may be above the best epoch here."
        )
    return [Table(rows, columns, note, sortable=True)]


def _paper(run: StoredRun) -> str | None:
    """Return what the paper prints, beside runs of the recipe as it is alone."""
    recipe = run.recipe
    known = paper_figure(recipe.name, recipe.train.epochs, data_name(recipe), run.setting)
    return None if known is None else f"{known:.1f}"


def paired(runs: Sequence[StoredRun], base: Sequence[StoredRun]) -> Estimate | None:
    """Estimate the difference of the last epochs over the seeds that both have, equally long."""

    def ends(held: Sequence[StoredRun]) -> dict[tuple[int, int], float]:
        return {
            (run.seed, run.recipe.train.epochs): run.last
            for run in held
            if run.finished and run.last is not None
        }

    ours, theirs = ends(runs), ends(base)
    found = [ours[key] - theirs[key] for key in sorted(ours.keys() & theirs.keys())]
    return estimate(found) if found else None


def _interval(value: Estimate | None) -> str | None:
    if value is None:
        return None
    if value.n == 1:
        return f"{value.mean:+.2f} (1 pair)"
    low, high = value.interval
    return f"{value.mean:+.2f} [{low:+.2f}, {high:+.2f}]"


def verdict(value: Estimate | None) -> Badge | None:
    """Say whether a paired difference leaves out zero."""
    if value is None or value.n == 1:
        return None if value is None else Badge("one pair")
    low, high = value.interval
    if low > 0:
        return Badge("better", "good")
    return Badge("worse", "bad") if high < 0 else Badge("within noise")


def _recording(run: StoredRun) -> str | None:
    """Return the time that the probe took, in percent of that of the epochs."""
    took = [number(record.get("seconds")) for record in run.records]
    known = [value for value in took if value is not None]
    return f"{100 * sum(known) / run.seconds:.2f}" if known and run.seconds else None


def _seconds(value: float) -> str | None:
    """Return seconds with one digit behind the point; a run without an epoch has none."""
    return f"{value:.1f}" if value else None


def runs_table(runs: Sequence[StoredRun]) -> Table:
    """Return every run in one line."""
    rows = [
        {
            "run": run.path.name,
            "data": run.data,
            "seed": run.seed,
            "state": state(run),
            "last": run.last,
            "best": run.best,
            "seconds": _seconds(run.seconds),
            "records": len(run.records),
            "recording": _recording(run),
        }
        for run in runs
    ]
    columns = {
        "run": "run",
        "state": "state",
        "seed": "seed",
        "data": "tested on",
        "last": "last, %",
        "best": "best, %",
        "seconds": "seconds",
        "records": "records",
        "recording": "recording, %",
    }
    if not any(row["recording"] for row in rows):
        del columns["recording"]
    return Table(rows, columns, sortable=True)
