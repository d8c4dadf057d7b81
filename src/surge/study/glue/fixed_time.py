"""Runs on GLUE whose schedules were fitted to a time: both arms of a pair train equally long."""

from collections.abc import Sequence
from pathlib import Path

from surge.data.glue import TASKS
from surge.study import results
from surge.study.results import Result, setting_of
from surge.study.statistics import estimate
from surge.study.tables import base_row, interval_cell, paired, spread_cell
from surge.train.budget import seconds_of

Where = tuple[str, str, str, str]
"""Row, data, time given, hardware: so many seconds are the same time on one machine alone."""
HEAD = ("row", "data", "time given", "steps", "last", "best", "n", "minus its base, 95 %")


def section(folder: Path) -> str:
    """Return the published table: runs that were tested on whole dev sets, and on what they ran."""
    stored = results.read(folder, "glue")
    shown = _timed([r for r in stored if "dev set" in r.data and "first " not in r.data])
    if not shown:
        return "Nothing is stored yet.\n"
    used = {
        name: ", ".join(sorted({str(getattr(r, name)) for r in shown}))
        for name in ("hardware", "torch", "precision")
    }
    count = f"{len(shown)} stored run{'s' * (len(shown) != 1)}"
    facts = f"{count} on {used['hardware']}, torch {used['torch']}, {used['precision']}.\n"
    return f"{table(shown)}\n{facts}"


def table(stored: Sequence[Result]) -> str:
    """Return one row per row of GLUE and time; empty without any.

    The metric is the one that decides. Runs in which more was changed than the time are left out.
    """
    found: dict[Where, list[Result]] = {}
    for r in _timed(stored):
        found.setdefault((r.row, r.data, r.overrides["budget"], r.hardware), []).append(r)
    if not found:
        return ""
    lines = [HEAD, ("---",) * 2 + ("---:",) * (len(HEAD) - 2)]
    for row, data, given, hardware in sorted(found, key=_place):
        mine = found[row, data, given, hardware]
        seeds = {r.seed: r for r in mine}.values()  # the newest run of a seed counts
        base = (base_row(row) or "", data, given, hardware)
        lines.append(
            (
                *(row, data, given, _steps([r.steps for r in seeds])),
                *(spread_cell(estimate([getattr(r, end) for r in seeds])) for end in ENDS),
                str(len(seeds)),
                interval_cell(paired(mine, found.get(base, ())), row),
            )
        )
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


ENDS = ("last", "best")


def _timed(stored: Sequence[Result]) -> list[Result]:
    """Return the runs that were given a time and changed in nothing else."""
    kept = []
    for r in stored:
        given = r.overrides.get("budget")
        if given is not None and r.setting == setting_of({"budget": given}) and r.decides:
            kept.append(r)
    return kept


def _place(where: Where) -> tuple[int, str, float, str, str]:
    """Sort by task, network, time and machine; an arm with SURGE stands behind its base."""
    row, data, given, hardware = where
    return list(TASKS).index(row.partition("-")[0]), data, seconds_of(given), hardware, row


def _steps(counts: Sequence[int | None]) -> str:
    """Return how many steps the runs did: from the fewest to the most."""
    known = sorted({count for count in counts if count is not None})
    if not known:
        return "-"
    return f"{known[0]:,}" if len(known) == 1 else f"{known[0]:,} to {known[-1]:,}"
