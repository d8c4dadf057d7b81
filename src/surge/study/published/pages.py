"""Published tables, made from ``results/``: ``make tables`` renews them in their pages.

A page has a table between ``<!-- results:NAME -->`` and ``<!-- /results:NAME -->``.
"""

from collections.abc import Callable, Collection, Sequence
from functools import partial
from pathlib import Path

from surge.errors import ConfigError
from surge.recipes import get_recipe, list_recipes
from surge.recipes.variants import has_number
from surge.study import results
from surge.study.all_methods import PROTOCOLS, pairs
from surge.study.bench import (
    cost_table,
    latency_table,
    row_speed,
    speed_figures,
    speed_table,
    step_profile,
)
from surge.study.findings import large_doses, new_seeds, rounding, screening, tails
from surge.study.glue import fixed_time, glue_intervals
from surge.study.glue.glue_tables import align_section, overhead_section, packed_section
from surge.study.markers import replaced
from surge.study.published import less_table, loader_table, methods_figure, scaling, variant_table
from surge.study.published.box_table import section as box_section
from surge.study.published.rest_table import section as rest_section
from surge.study.published.threads_table import section as threads_section
from surge.study.results import Result
from surge.study.tables import TableRow, make_rows, markdown, stored_rows

ALWAYS = tuple(
    f"{model}-recu{suffix}"
    for model in ("resnet18", "resnet20", "vggsmall")
    for suffix in ("", "-surge")
)
"""Rows of CIFAR-10 that are shown even while nothing is stored for them."""


def cifar10(folder: Path) -> str:
    """Return the table of CIFAR-10, one row per (row, epochs), and what it was measured with.

    Shown are runs of the recipes as they are, tested on the test set; runs on held-out training
    images and with changed settings stay in ``folder``.
    """
    stored = _unchanged(folder, "cifar10")
    rows = _with_open_ones([f"cifar10-{row}" for row in ALWAYS], stored)
    return f"{markdown(rows)}\n{_facts(stored)}"


def stored_table(table: str, folder: Path) -> str:
    """Return what is stored of a table, by the metric that decides."""
    stored = _unchanged(folder, table)
    rows = sorted(stored_rows(stored), key=_place)
    return f"{markdown(rows)}\n{_facts(stored)}" if stored else _facts(stored)


def methods(table: str, folder: Path) -> str:
    """Return a table of all methods, what their steps cost, and what they say together.

    Every row of the table is there, open where nothing is stored, and so are variants that are.
    """
    stored, speeds = _unchanged(folder, table), row_speed.read(folder, table)
    rows = _with_open_ones(list_recipes(table), stored)
    parts = [markdown(rows, row_speed.columns(speeds)), _facts(stored)]
    more = (row_speed.facts(speeds), methods_figure.summary(table, pairs(table, stored)))
    return "\n".join([*parts, *filter(None, more)])


def _with_open_ones(names: Sequence[str], stored: Sequence[Result]) -> list[TableRow]:
    """Return what is stored, and these recipes where they are not."""
    rows = [*make_rows([get_recipe(name) for name in names], stored), *stored_rows(stored)]
    return sorted({(row.row, row.epochs): row for row in rows}.values(), key=_place)


def _unchanged(folder: Path, table: str) -> list[Result]:
    kept = []
    for result in results.read(folder, table):
        try:
            recipe = get_recipe(result.recipe)
        except ConfigError:  # a row of an earlier version
            continue
        held_out = "held out" in result.data or "first " in result.data
        changed = result.setting or has_number(result.row)  # which make curves of their own
        if not held_out and not changed and result.metric == recipe.metric:
            kept.append(result)
    return kept


def _place(row: TableRow) -> tuple[str, int, str]:
    """Sort by the first word, longest training first, a row with SURGE right behind its base."""
    return row.row.split("-")[0], -row.epochs, row.row


def _facts(stored: Sequence[Result]) -> str:
    """Say what was run on what, in full sentences."""
    if not stored:
        return "No run is stored yet: every cell is open.\n"
    newest = {(r.row, r.epochs, r.data, r.setting, r.seed): r for r in stored}
    stored = list(newest.values())
    hours = sum(r.seconds / r.side_by_side for r in stored) / 3600
    seeds = in_ranges({r.seed for r in stored})
    used = {
        name: ", ".join(sorted({str(getattr(r, name)) for r in stored}))
        for name in ("hardware", "torch", "precision")
    }
    return (
        f"{len(stored)} stored runs, {hours:.1f} hours on {used['hardware']}, torch "
        f"{used['torch']}, {used['precision']}; seeds {seeds}. *open*: not run yet.\n"
    )


def in_ranges(numbers: Collection[int]) -> str:
    """Return whole numbers in order, three and more in a row as a range.

    >>> in_ranges([5, 0, 1, 2, 8, 9])
    '0-2, 5, 8, 9'
    """
    rows: list[list[int]] = []
    for number in sorted(numbers):
        if rows and rows[-1][-1] == number - 1:
            rows[-1].append(number)
        else:
            rows.append([number])
    words = [[f"{r[0]}-{r[-1]}"] if len(r) > 2 else [str(n) for n in r] for r in rows]
    return ", ".join(word for row in words for word in row)


Section = Callable[[Path], str]
"""Makes the text between two markers from the folder of results."""

PAGES: dict[str, dict[str, Section]] = {
    "README.md": {"cifar10": cifar10},
    "docs/results.md": {
        **{name: partial(methods, name) for name in PROTOCOLS},
        **{name: partial(stored_table, name) for name in ("imagenette", "voc", "glue")},
        "glue-intervals": glue_intervals.section,
        "fixed-time": fixed_time.section,
    },
    "docs/findings.md": {
        "tails": tails.section,
        "rounding": rounding.section,
        "screening": screening.section,
        "confirmed": screening.confirmed,
        "new-seeds": new_seeds.variants,
        "new-seeds-losses": new_seeds.losses,
        "new-seeds-cause": new_seeds.cause,
        "new-seeds-leads": new_seeds.leads,
        "explored": large_doses.explored,
        "large-doses": large_doses.section,
    },
    "docs/recipes.md": {"variants": variant_table.section},
    "docs/glue.md": {
        "overhead": overhead_section,
        "align": align_section,
        "packed": packed_section,
    },
    "docs/deploying.md": {
        "box": box_section,
        "inference": latency_table.section,
        "threads": threads_section,
        "rest": rest_section,
    },
    "docs/distributed.md": {"scaling": scaling.section},
    "docs/imagenet.md": {"costs": cost_table.section, "loader": loader_table.section},
    "docs/performance.md": {
        "training": speed_table.section,
        "less": less_table.section,
        "sweeps": speed_table.sweeps_section,
        "profile": step_profile.section,
    },
}
"""What every page shows."""


def renewed(text: str, page: str, folder: Path) -> str:
    """Return a page with all its tables made anew."""
    for name, section in PAGES[page].items():
        begin, end = f"<!-- results:{name} -->\n", f"<!-- /results:{name} -->\n"
        text = replaced(text, begin, end, section(folder), page=page)
    return text


def renew_all(root: Path) -> None:
    """Rewrite the tables of all pages in place, and draw the pictures that go with them."""
    for page in PAGES:
        path = root / page
        text = renewed(path.read_text(encoding="utf-8"), page, root / "results")
        path.write_text(text, encoding="utf-8")
    speed_figures.renew(root / "results", root / "docs")
    screening.renew(root / "results", root / "docs")
    for table in PROTOCOLS:
        found = pairs(table, _unchanged(root / "results", table))
        methods_figure.renew(table, found, root / "docs")
