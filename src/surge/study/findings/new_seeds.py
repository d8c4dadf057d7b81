"""What stood out on digits, once more with seeds that played no part in naming it."""

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from surge.recipes.variants import row_with
from surge.study import results
from surge.study.results import Result
from surge.study.tables import against, difference_cell, paired

PLAIN = "cnn-recu"
NAMED = ("tied", "salient")
"""The variants with an interval above zero over the first seeds."""
CONTROLS = ("noise", "leaky")
FIRST = 12
"""Seeds below this are those that named them."""
LOSSES = {"cnn-bonn": 24, "cnn-dorefa": 24}
"""Rows to which SURGE seemed to cost accuracy, and the seeds that said so."""
LEADS = {"resnet20-bonn": 1, "resnet20-bnn": 1}
"""Rows of *common* to which SURGE seemed to give most, and the seeds that said so."""
CAUSE = ("cnn-bonn", 24)
"""The row that got more new seeds, beside noise of the same norm, and those that named it."""


def variants(folder: Path) -> str:
    """Return one row per variant: accuracy, and its difference to plain training and controls."""
    stored = [r for r in _stored(folder) if r.seed >= FIRST]
    return against(stored, PLAIN, ("", *NAMED), CONTROLS)


def cause(folder: Path) -> str:
    """Return that row beside noise, over seeds that did not name it."""
    base, count = CAUSE
    stored = [r for r in _stored(folder) if r.seed >= count]
    return against(stored, base, ("",), ("noise",))


def _stored(folder: Path) -> list[Result]:
    return [r for r in results.read(folder, "digits") if not r.setting]


def losses(folder: Path) -> str:
    """Return SURGE minus its base over the first seeds, which named a row, and over the others."""
    return _named(_stored(folder), LOSSES)


def leads(folder: Path) -> str:
    """Return the same of the rows of *common* that stood out."""
    return _named([r for r in results.read(folder, "common") if not r.setting], LEADS)


def _named(stored: Sequence[Result], rows: Mapping[str, int]) -> str:
    lines = ["| row | seeds that named it | new seeds |", "| --- | ---: | ---: |"]
    for base, count in rows.items():
        row = row_with(base, "")
        cells = [row]
        for part in (range(count), range(count, sys.maxsize)):
            mine, theirs = (
                [r for r in stored if r.row == n and r.seed in part] for n in (row, base)
            )
            cells.append(difference_cell(paired(mine, theirs)))
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"
