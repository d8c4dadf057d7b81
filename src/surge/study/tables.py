"""Result tables: what the paper prints, what was measured here, and the paired difference."""

from collections.abc import Sequence
from dataclasses import dataclass

from surge.recipes.recipe import Recipe
from surge.study.results import Result, data_name, select
from surge.study.statistics import Estimate, estimate


@dataclass(frozen=True)
class TableRow:
    """One row: a recipe with what is stored for it."""

    row: str
    epochs: int
    data: str
    paper: float | None
    last: Estimate | None
    best: Estimate | None
    difference: Estimate | None
    """Last epoch minus the row without SURGE, over the seeds that both have."""


def base_row(row: str) -> str | None:
    """Return the row that a SURGE row is compared with.

    >>> base_row("resnet20-recu-surge-tied"), base_row("resnet20-recu")
    ('resnet20-recu', None)
    """
    base, found, _ = row.partition("-surge")
    return base if found else None


def make_rows(recipes: Sequence[Recipe], results: Sequence[Result]) -> list[TableRow]:
    """Return the table in recipe order; a row without results stays open."""
    return [_make_row(recipe, results) for recipe in recipes]


def _make_row(recipe: Recipe, results: Sequence[Result]) -> TableRow:
    same = {"epochs": recipe.train.epochs, "data": data_name(recipe), "metric": recipe.metric}
    mine = {r.seed: r for r in select(results, row=recipe.row, **same)}
    base = base_row(recipe.row)
    theirs = {r.seed: r for r in select(results, row=base, **same)} if base else {}
    pairs = [mine[seed].last - theirs[seed].last for seed in sorted(mine.keys() & theirs.keys())]
    return TableRow(
        row=recipe.row,
        epochs=recipe.train.epochs,
        data=data_name(recipe),
        paper=recipe.paper,
        last=estimate([r.last for r in mine.values()]) if mine else None,
        best=estimate([r.best for r in mine.values()]) if mine else None,
        difference=estimate(pairs) if pairs else None,
    )


def markdown(rows: Sequence[TableRow]) -> str:
    """Return the table as Markdown; cells without a result say *open*."""
    lines = [
        "| row | epochs | paper | last epoch | best epoch | n | minus its base, 95 % |",
        "| --- | ---: | ---: | ---: | ---: | ---: | ---: |",
    ]
    for row in rows:
        paper = "-" if row.paper is None else f"{row.paper:.1f}"
        n = row.last.n if row.last else 0
        cells = (_spread(row.last), _spread(row.best), str(n), _interval(row.difference, row.row))
        lines.append(f"| {row.row} | {row.epochs} | {paper} | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def _spread(value: Estimate | None) -> str:
    if value is None:
        return "open"
    return f"{value.mean:.2f}" + (f" +- {value.std:.2f}" if value.n > 1 else "")


def _interval(value: Estimate | None, row: str) -> str:
    if base_row(row) is None:
        return "-"
    if value is None:
        return "open"
    if value.n == 1:
        return f"{value.mean:+.2f} (1 pair)"
    low, high = value.interval
    return f"{value.mean:+.2f} [{low:+.2f}, {high:+.2f}] ({value.n} pairs)"
