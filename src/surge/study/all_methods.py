"""Tables that have every method under one protocol, and what all methods say together."""

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean

from surge.recipes import get_recipe, list_recipes
from surge.study.results import Result
from surge.study.statistics import Estimate, estimate
from surge.study.tables import TableRow, base_row, make_rows

PROTOCOLS = {
    "common": "ResNet-20 on CIFAR-10, ReCU's schedule",
    "digits": "three convolutions on scikit-learn's digits",
}
"""The tables, and what they train on what."""


@dataclass(frozen=True)
class Pair:
    """One method: its row, and its row with SURGE where there is one."""

    name: str
    alone: Estimate
    with_surge: TableRow | None

    @property
    def difference(self) -> Estimate | None:
        """With SURGE minus alone, over seeds."""
        return self.with_surge.difference if self.with_surge else None


def pairs(table: str, stored: Sequence[Result]) -> list[Pair]:
    """Return the methods of a table that are stored, the least accurate first."""
    rows = {row.row: row for row in make_rows([get_recipe(n) for n in list_recipes(table)], stored)}
    made = [
        Pair(name.partition("-")[2], row.last, rows.get(f"{name}-surge"))
        for name, row in rows.items()
        if base_row(name) is None and row.last is not None
    ]
    return sorted(made, key=lambda pair: pair.alone.mean)


def over_methods(found: Sequence[Pair]) -> Estimate | None:
    """Estimate the difference over methods, each of which counts once; needs two."""
    means = [pair.difference.mean for pair in found if pair.difference is not None]
    return estimate(means) if len(means) > 1 else None


def over_seeds(found: Sequence[Pair]) -> Estimate | None:
    """Estimate the mean difference of these methods over the seeds that all of them have."""
    held = [pair.with_surge.differences for pair in found if pair.with_surge and pair.difference]
    shared = set[int].intersection(*map(set, held)) if held else set[int]()
    means = [fmean(differences[seed] for differences in held) for seed in sorted(shared)]
    return estimate(means) if means else None
