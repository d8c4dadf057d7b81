"""What stood out on digits, once more with seeds that played no part in naming it."""

import sys
from pathlib import Path

from surge.recipes.variants import row_with
from surge.study import results
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


def variants(folder: Path) -> str:
    """Return one row per variant: accuracy, and its difference to plain training and controls."""
    stored = [r for r in results.read(folder, "digits") if r.seed >= FIRST and not r.setting]
    rows = [PLAIN, *(row_with(PLAIN, variant) for variant in ("", *NAMED, *CONTROLS))]
    runs = {row: [r for r in stored if r.row == row] for row in rows}
    against = ("", *(f"-surge-{control}" for control in CONTROLS))
    heads = ("minus plain", *(f"minus {control}" for control in CONTROLS))
    lines = [
        f"| row | accuracy | {' | '.join(f'{head}, 95 %' for head in heads)} |",
        f"| --- |{' ---: |' * (1 + len(heads))}",
    ]
    for row, mine in runs.items():
        last = {r.seed: r.last for r in mine}  # the newest run of a seed counts
        cells = [row, spread_cell(estimate(list(last.values())) if last else None)]
        for other in against:
            theirs = f"{PLAIN}{other}"
            cells.append("-" if row == theirs else difference_cell(paired(mine, runs[theirs])))
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def losses(folder: Path) -> str:
    """Return SURGE minus its base over the first seeds, which named a row, and over the others."""
    stored = [r for r in results.read(folder, "digits") if not r.setting]
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
