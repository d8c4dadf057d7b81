"""Published tables, generated from ``results/``: ``make tables`` renews them in their pages."""

from collections.abc import Sequence
from pathlib import Path

from surge.recipes import get_recipe
from surge.study import latency_table, results, scaling
from surge.study.markers import replaced
from surge.study.results import Result, data_name
from surge.study.tables import TableRow, make_rows, markdown, stored_rows

TABLE = "cifar10"
BEGIN, END = f"<!-- results:{TABLE} -->\n", "<!-- /results -->\n"
ALWAYS = tuple(
    f"{model}-recu{suffix}"
    for model in ("resnet18", "resnet20", "vggsmall")
    for suffix in ("", "-surge")
)
"""Rows that are shown even while nothing is stored for them."""


def section(folder: Path) -> str:
    """Return the table, one row per (row, epochs), and what it was measured with.

    Shown are runs of the recipes as they are, tested on the test set; runs on held-out training
    images and with changed settings stay in ``folder``.
    """
    recipes = [get_recipe(f"{TABLE}-{row}") for row in ALWAYS]
    data = data_name(recipes[0])
    stored = [r for r in results.read(folder, TABLE) if r.data == data and not r.setting]
    rows = {(row.row, row.epochs): row for row in make_rows(recipes, stored)}
    rows |= {(row.row, row.epochs): row for row in stored_rows(stored)}
    return f"{markdown(sorted(rows.values(), key=_place))}\n{_facts(stored)}"


def _place(row: TableRow) -> tuple[str, int, str]:
    """Sort by architecture, longest training first, a row with SURGE right behind its base."""
    return row.row.split("-")[0], -row.epochs, row.row


def _facts(stored: Sequence[Result]) -> str:
    """Say what was run on what, in full sentences."""
    if not stored:
        return "No run is stored yet: every cell is open.\n"
    hours = sum(r.seconds for r in stored) / 3600
    seeds = ", ".join(str(seed) for seed in sorted({r.seed for r in stored}))
    used = {
        name: ", ".join(sorted({str(getattr(r, name)) for r in stored}))
        for name in ("hardware", "torch", "precision")
    }
    return (
        f"{len(stored)} stored runs, {hours:.1f} hours on {used['hardware']}, torch "
        f"{used['torch']}, {used['precision']}; seeds {seeds}. *open*: not run yet.\n"
    )


def renewed(text: str, folder: Path) -> str:
    """Return the README with its table made anew."""
    return replaced(text, BEGIN, END, section(folder), page="README.md")


def renew(path: Path, folder: Path) -> None:
    """Rewrite the README's table in place."""
    path.write_text(renewed(path.read_text(encoding="utf-8"), folder), encoding="utf-8")


def renew_all(root: Path) -> None:
    """Rewrite the tables of README.md and of the pages in docs in place."""
    stored = root / "results"
    renew(root / "README.md", stored)
    page = root / "docs" / "deploying.md"
    page.write_text(
        latency_table.renewed(page.read_text(encoding="utf-8"), stored), encoding="utf-8"
    )
    page = root / "docs" / "distributed.md"
    if page.exists():
        page.write_text(scaling.renewed(page.read_text(encoding="utf-8"), stored), encoding="utf-8")
