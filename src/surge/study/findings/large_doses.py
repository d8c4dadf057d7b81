"""Plain STE with large doses of SURGE on digits, beside controls and at other learning rates."""

from dataclasses import dataclass
from pathlib import Path

from surge.recipes import get_recipe
from surge.study import results
from surge.study.results import Result
from surge.study.statistics import estimate
from surge.study.tables import against, spread_cell

PLAIN = "cnn-bnn"
CONTROLS = ("noise-eta1", "leaky-eta1")


@dataclass(frozen=True)
class Trial:
    """What was named before it ran."""

    title: str
    epochs: int
    seeds: int
    variants: tuple[str, ...]
    setting: str = ""
    faster: str = ""
    """Another setting, in which plain training is one more control."""


TRIALS = (
    Trial("20 epochs, as the recipe has it", 20, 36, ("", "eta1", "tied-eta1"), faster="lr=0.1"),
    Trial("60 epochs", 60, 12, ("tied-eta1",)),
    Trial("20 epochs with a rate of 1.6", 20, 36, ("", "eta1"), setting="lr=1.6"),
)
EXPLORED = range(200, 206)
"""Seeds that said what to try, and count nowhere else here."""


def explored(folder: Path) -> str:
    """Return plain STE by learning rate, and at its own rate by form and dose of SURGE."""
    stored = [r for r in results.read(folder, "digits") if r.seed in EXPLORED]
    lines = ["| row | rate | accuracy |", "| --- | ---: | ---: |"]
    found: dict[tuple[float, str], dict[int, float]] = {}
    for r in stored:
        if r.row.startswith(PLAIN):
            rate = float(r.overrides.get("lr", get_recipe(f"digits-{PLAIN}").train.lr))
            found.setdefault((rate, r.row), {})[r.seed] = r.last
    lines += [
        f"| {row} | {rate:g} | {spread_cell(estimate(list(seeds.values())))} |"
        for (rate, row), seeds in sorted(found.items())
    ]
    return "\n".join(lines) + "\n"


def section(folder: Path) -> str:
    """Return a table for each trial."""
    stored = results.read(folder, "digits")
    return "\n".join(f"{trial.title}:\n\n{_table(trial, stored)}" for trial in TRIALS)


def _table(trial: Trial, stored: list[Result]) -> str:
    mine = [r for r in stored if r.epochs == trial.epochs and r.seed < trial.seeds]
    own = [r for r in mine if r.setting == trial.setting]
    faster = [r for r in mine if r.row == PLAIN and r.setting == trial.faster]
    more = {f"{PLAIN}, {trial.faster}": faster} if trial.faster else {}
    return against(own, PLAIN, trial.variants, CONTROLS, more)
