"""What stood out on digits, once more with seeds that played no part in naming it."""

import sys
from collections.abc import Sequence
from pathlib import Path

from surge.recipes.variants import row_with
from surge.study import results
from surge.study.results import Result
from surge.study.statistics import estimate
from surge.study.tables import difference_cell, paired, spread_cell

PLAIN = "cnn-recu"
NAMED = ("tied", "salient")
"""The variants with an interval above zero over the first seeds."""
CONTROLS = ("noise", "leaky")
FIRST = 12
"""Seeds below this are those that named them."""
LOSSES = {"cnn-bonn": 24, "cnn-dorefa": 24}
"""Rows to which SURGE seemed to cost accuracy, and the seeds that said so."""
CAUSE = ("cnn-bonn", 24)
"""The loss that stayed, beside noise of the same norm."""
UNCLAMPED = "cnn-bnn"
"""A row in which no clamp keeps inputs in reach of the surrogate."""
DOSES = {20: (range(36), ("", "eta1", "tied-eta1")), 60: (range(12), ("tied-eta1",))}
"""What was named for it: epochs, and for each its seeds and variants."""
DOSE_CONTROLS = ("noise-eta1", "leaky-eta1")


def variants(folder: Path) -> str:
    """Return one row per variant: accuracy, and its difference to plain training and controls."""
    stored = [r for r in _stored(folder) if r.seed >= FIRST]
    return _table(stored, PLAIN, ("", *NAMED), CONTROLS)


def cause(folder: Path) -> str:
    """Return the loss that stayed beside noise, over seeds that did not name it."""
    base, count = CAUSE
    stored = [r for r in _stored(folder) if r.seed >= count]
    return _table(stored, base, ("",), ("noise",))


def doses(folder: Path) -> str:
    """Return plain STE with large doses, a table for each length."""
    tables = []
    for epochs, (seeds, tried) in DOSES.items():
        stored = [r for r in _stored(folder) if r.epochs == epochs and r.seed in seeds]
        table = _table(stored, UNCLAMPED, tried, DOSE_CONTROLS)
        tables.append(f"After {epochs} epochs:\n\n{table}")
    return "\n".join(tables)


def _stored(folder: Path) -> list[Result]:
    return [r for r in results.read(folder, "digits") if not r.setting]


def _table(
    stored: Sequence[Result], plain: str, tried: Sequence[str], controls: Sequence[str]
) -> str:
    """Return a row per variant, in columns what is subtracted."""
    names = {variant: row_with(plain, variant) for variant in (*tried, *controls)}
    runs = {row: [r for r in stored if r.row == row] for row in (plain, *names.values())}
    against = {"plain": plain, **{control: names[control] for control in controls}}
    lines = [
        f"| row | accuracy | {' | '.join(f'minus {name}, 95 %' for name in against)} |",
        f"| --- |{' ---: |' * (1 + len(against))}",
    ]
    for row, mine in runs.items():
        last = {r.seed: r.last for r in mine}  # the newest run of a seed counts
        cells = [row, spread_cell(estimate(list(last.values())) if last else None)]
        cells += [
            "-" if row == theirs else difference_cell(paired(mine, runs[theirs]))
            for theirs in against.values()
        ]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def losses(folder: Path) -> str:
    """Return SURGE minus its base over the first seeds, which named a row, and over the others."""
    stored = _stored(folder)
    lines = ["| row | seeds that named it | new seeds |", "| --- | ---: | ---: |"]
    for base, count in LOSSES.items():
        row = row_with(base, "")
        cells = [row]
        for part in (range(count), range(count, sys.maxsize)):
            mine, theirs = (
                [r for r in stored if r.row == n and r.seed in part] for n in (row, base)
            )
            cells.append(difference_cell(paired(mine, theirs)))
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"
