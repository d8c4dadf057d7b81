"""Result tables: what the paper prints, what was measured here, and the paired difference."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from surge.errors import ConfigError
from surge.recipes import get_recipe
from surge.recipes.recipe import Recipe
from surge.recipes.variants import row_with
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
    differences: Mapping[int, float] = field(default_factory=dict)
    """Last epoch minus the row without SURGE, by seed, for the seeds that both have."""
    setting: str = ""
    """What was changed in the recipe itself."""

    @property
    def difference(self) -> Estimate | None:
        """The mean of these differences."""
        return estimate(list(self.differences.values())) if self.differences else None


def base_row(row: str) -> str | None:
    """Return the row that a SURGE row is compared with.

    >>> base_row("resnet20-recu-surge-tied"), base_row("resnet20-recu")
    ('resnet20-recu', None)
    """
    base, found, _ = row.partition("-surge")
    return base if found else None


@dataclass(frozen=True)
class Kind:
    """What runs must share to stand in one row of a table."""

    row: str
    epochs: int
    data: str
    metric: str
    setting: str = ""

    @property
    def base(self) -> "Kind | None":
        """The same without SURGE, and without what only SURGE has."""
        base = base_row(self.row)
        if base is None:
            return None
        kept = [
            part
            for part in self.setting.split(", ")
            if not part.startswith(("eta=", "fixed_scale="))
        ]
        return replace(self, row=base, setting=", ".join(kept))

    def among(self, results: Sequence[Result]) -> list[Result]:
        """Return the results of this kind."""
        return select(results, **vars(self))


def make_rows(recipes: Sequence[Recipe], results: Sequence[Result]) -> list[TableRow]:
    """Return the table in recipe order; a row without results stays open."""
    return [
        _make_row(Kind(r.row, r.train.epochs, data_name(r), r.metric), r.paper, results)
        for r in recipes
    ]


def stored_rows(results: Sequence[Result]) -> list[TableRow]:
    """Return one row per (row, epochs, data) that is stored, in the order of the first results.

    Runs whose recipe was changed (``--eta``) have rows of their own. What the paper prints is
    shown beside the recipe's own number of epochs only.
    """
    found: dict[Kind, float | None] = {}
    for r in results:
        kind = Kind(r.row, r.epochs, r.data, r.metric, r.setting)
        found.setdefault(kind, paper_figure(r.recipe, r.epochs, r.data, r.setting))
    return [_make_row(kind, paper, results) for kind, paper in found.items()]


def paper_figure(name: str, epochs: int, data: str, setting: str) -> float | None:
    """Return what the paper prints for a recipe, beside runs of the recipe as it is alone."""
    try:
        recipe = get_recipe(name)
    except ConfigError:  # a row of an earlier version
        return None
    own = recipe.train.epochs == epochs and not setting
    return recipe.paper if own and data_name(recipe) == data else None


def _make_row(kind: Kind, paper: float | None, results: Sequence[Result]) -> TableRow:
    mine = kind.among(results)
    theirs = kind.base.among(results) if kind.base else []
    seeds = {r.seed: r for r in mine}  # the newest run of a seed counts
    return TableRow(
        row=kind.row,
        epochs=kind.epochs,
        data=kind.data,
        paper=paper,
        last=estimate([r.last for r in seeds.values()]) if seeds else None,
        best=estimate([r.best for r in seeds.values()]) if seeds else None,
        differences=differences(mine, theirs),
        setting=kind.setting,
    )


def paired(mine: Sequence[Result], theirs: Sequence[Result]) -> Estimate | None:
    """Estimate the difference after the last epoch over the seeds that both have."""
    found = differences(mine, theirs)
    return estimate(list(found.values())) if found else None


def differences(mine: Sequence[Result], theirs: Sequence[Result]) -> dict[int, float]:
    """Return the difference after the last epoch for every seed that both have, in order.

    The newest run of a seed counts; a pair has the same arithmetic, and a seed is one pair.
    """
    others = {(r.seed, r.precision): r.last for r in theirs}
    found = {
        r.seed: r.last - others[r.seed, r.precision]
        for r in mine
        if (r.seed, r.precision) in others
    }
    return dict(sorted(found.items()))


def against(
    stored: Sequence[Result],
    plain: str,
    tried: Sequence[str],
    controls: Sequence[str],
    more: Mapping[str, Sequence[Result]] | None = None,
) -> str:
    """Return a line per row: accuracy, and its difference to plain training and to controls.

    ``tried`` and ``controls`` are variants of SURGE; ``more`` adds lines by the names it gives.
    """
    names = {variant: row_with(plain, variant) for variant in (*tried, *controls)}
    runs = {row: [r for r in stored if r.row == row] for row in (plain, *names.values())}
    others = {"plain": plain, **{control: names[control] for control in controls}}
    lines = [
        f"| row | accuracy | {' | '.join(f'minus {name}, 95 %' for name in others)} |",
        f"| --- |{' ---: |' * (1 + len(others))}",
    ]
    for row, mine in {**runs, **(more or {})}.items():
        last = {r.seed: r.last for r in mine}  # the newest run of a seed counts
        cells = [row, spread_cell(estimate(list(last.values())) if last else None)]
        cells += [
            "-" if row == other else difference_cell(paired(mine, runs[other]))
            for other in others.values()
        ]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def markdown(rows: Sequence[TableRow], more: Mapping[str, Mapping[str, str]] | None = None) -> str:
    """Return the table as Markdown; cells without a result say *open*.

    Which images were tested on is a column where rows differ in it. ``more`` adds columns at the
    end: heading -> row -> cell.
    """
    more = more or {}
    mixed = len({row.data for row in rows}) > 1
    lines = [
        f"| row |{' data |' * mixed} epochs | paper | last epoch | best epoch | n | "
        f"minus its base, 95 % |{''.join(f' {heading} |' for heading in more)}",
        f"| --- |{' --- |' * mixed}{' ---: |' * (6 + len(more))}",
    ]
    for row in rows:
        name = f"{row.row} ({row.setting})" if row.setting else row.row
        line = [
            name,
            *([row.data] if mixed else []),
            str(row.epochs),
            "-" if row.paper is None else f"{row.paper:.1f}",
            spread_cell(row.last),
            spread_cell(row.best),
            str(row.last.n if row.last else 0),
            interval_cell(row.difference, row.row),
            *(cells.get(row.row, "open") for cells in more.values()),
        ]
        lines.append(f"| {' | '.join(line)} |")
    return "\n".join(lines) + "\n"


def spread_cell(value: Estimate | None) -> str:
    """Return a mean with its standard deviation, if it has one, as a cell."""
    if value is None:
        return "open"
    return f"{value.mean:.2f}" + (f" +- {value.std:.2f}" if value.n > 1 else "")


def interval_cell(value: Estimate | None, row: str) -> str:
    """Return the paired difference of a row as a cell; a row without SURGE has none."""
    return "-" if base_row(row) is None else difference_cell(value)


def difference_cell(value: Estimate | None) -> str:
    """Return a paired difference as a cell."""
    if value is None:
        return "open"
    if value.n == 1:
        return f"{value.mean:+.2f} (1 pair)"
    low, high = value.interval
    return f"{value.mean:+.2f} [{low:+.2f}, {high:+.2f}] ({value.n} pairs)"
