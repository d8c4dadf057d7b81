r"""The curves over eta and over fixed scales, from stored results alone.

    surge reproduce cifar10 --epochs 20 --held-out --rows resnet20-recu resnet20-recu-surge \
        --eta 0.001 0.1 --fixed-scale 0.1

stores what they need: rows whose names carry the number (``resnet20-recu-surge-eta0.1``). Runs of
``surge train --eta`` and ``--fixed-scale`` count too.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from surge.compensation.options import PathOptions
from surge.recipes import get_recipe
from surge.recipes.variants import SWEPT, has_number, split_variant
from surge.study import figures
from surge.study.figures import COLOURS, Row
from surge.study.results import Result

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

KEYS = tuple(SWEPT.values())
AGS, WITHOUT = "adaptive scale", "without SURGE"
TITLES = {"eta": "The share eta", "fixed_scale": "A fixed scale"}
BROKEN = 15.0
"""Points below the best run from where on a run has broken down."""

Where = tuple[str, str, int, str]
"""A row without its number, what it was tested on, its epochs, its arithmetic."""
Held = dict[float, dict[int, float]]
"""Last epochs by value of the setting, then by seed."""


@dataclass
class Curve:
    """One row of a table over the values of one setting."""

    points: Held = field(default_factory=dict)
    references: dict[str, dict[int, float]] = field(default_factory=dict)
    """What it is compared with, by seed: the adaptive scale, and the row without SURGE."""


def options_in(result: Result) -> PathOptions | None:
    """Return the settings of SURGE that a stored run had; None without SURGE."""
    options = get_recipe(result.recipe).surge
    given = {key: result.overrides[key] for key in KEYS if result.overrides.get(key) is not None}
    return replace(options, **given) if options and given else options


def row_of(result: Result) -> str:
    """Return the row without its number, with whatever else was changed."""
    base, found, variant = result.row.partition("-surge")
    name = split_variant(variant.removeprefix("-"))[0]
    row = base + found + (f"-{name}" if name else "")
    others = [part for part in result.setting.split(", ") if part.split("=")[0] not in KEYS]
    return " ".join([f"{result.table}-{row}", *filter(None, others)])


def curves(results: Sequence[Result], key: str) -> dict[Where, Curve]:
    """Return every stored curve over ``eta``, of two values at least, or over ``fixed_scale``.

    Its points and references are those of the seeds that all of them have, if there are such.
    """
    found: dict[Where, Curve] = {}
    results = [result for result in results if result.decides]
    for result in results:
        options = options_in(result)
        if options is None:
            continue
        curve = found.setdefault((row_of(result), *_shared(result)), Curve())
        value = options.fixed_scale
        if key == "fixed_scale" and isinstance(value, float):
            curve.points.setdefault(value, {})[result.seed] = result.last
        if value is None and key == "eta":
            curve.points.setdefault(options.eta, {})[result.seed] = result.last
        if value is None and key == "fixed_scale" and not _swept(result):
            curve.references.setdefault(AGS, {})[result.seed] = result.last
    for result in results:
        for (row, *shared), curve in found.items():
            name, space, changed = row.partition(" ")
            plain = f"{name.partition('-surge')[0]}{space}{changed}"
            if (row_of(result), *_shared(result)) == (plain, *shared):
                curve.references.setdefault(WITHOUT, {})[result.seed] = result.last
    least = 2 if key == "eta" else 1
    return {where: _alike(curve) for where, curve in found.items() if len(curve.points) >= least}


def _shared(result: Result) -> tuple[str, int, str]:
    """Return what all runs of a curve have in common beside their row."""
    return result.data, result.epochs, result.precision


def _alike(curve: Curve) -> Curve:
    """Leave a curve the seeds that all its points and references have, if there are such."""
    lines = (*curve.points.values(), *curve.references.values())
    shared = set.intersection(*(set(line) for line in lines))
    for line in lines if shared else ():
        for seed in set(line) - shared:
            del line[seed]
    return curve


def _swept(result: Result) -> bool:
    """Return whether a run has another eta than its row is known with."""
    return has_number(result.row) or result.overrides.get("eta") is not None


def rows(results: Sequence[Result], key: str) -> list[Row]:
    """Return one row per stored run, references included; those have no value of the setting."""
    made: list[Row] = []
    for (row, data, epochs, precision), curve in sorted(curves(results, key).items()):
        place = {"row": row, "data": data, "epochs": epochs, "precision": precision}
        for value, seeds in sorted(curve.points.items()):
            made += [
                {**place, "series": key, "seed": seed, key: value, "value": last}
                for seed, last in sorted(seeds.items())
            ]
        for series, seeds in sorted(curve.references.items()):
            made += [
                {**place, "series": series, "seed": seed, key: "", "value": last}
                for seed, last in sorted(seeds.items())
            ]
    return made


def draw(made: Sequence[Row], key: str) -> Figure:
    """Return the metric against the setting, one panel per row of a table."""
    panels: dict[tuple[Any, ...], list[Mapping[str, Any]]] = {}
    for row in made:
        where = (row["row"], row["data"], row["epochs"], row["precision"])
        panels.setdefault(where, []).append(row)
    with figures.look():
        columns = min(len(panels), 2)
        count = -(-len(panels) // columns)
        figure, places = figures.new_figure(count, columns, panel=(4.6, 3.3))
        for axes, ((row, data, epochs, _), mine) in zip(places, panels.items(), strict=False):
            _paint(axes, mine, key)
            seeds = len({point["seed"] for point in mine})
            note = f"{row}, {epochs} epochs\n{data}; {seeds} seed{'s' * (seeds != 1)}"
            figures.panel_title(axes, TITLES[key], note)
        for axes in places[len(panels) :]:
            axes.set_axis_off()
    return figure


def _paint(axes: Axes, made: Sequence[Mapping[str, Any]], key: str) -> None:
    """Mean over the seeds at every value, a dot per run; references are lines across."""
    own = [row for row in made if row["series"] == key]
    values = sorted({row[key] for row in own})
    means = [float(np.mean([row["value"] for row in own if row[key] == v])) for v in values]
    colour = COLOURS["blue"]
    axes.plot(values, means, color=colour, linewidth=1.6, label=key.replace("_", " "))
    axes.plot(
        [row[key] for row in own], [row["value"] for row in own], "o", color=colour, markersize=4.0
    )
    for series, shade, dashes in ((AGS, "vermilion", "-."), (WITHOUT, "grey", "--")):
        held = [row["value"] for row in made if row["series"] == series]
        if held:
            look: dict[str, Any] = {"color": COLOURS[shade], "linestyle": dashes, "linewidth": 1.3}
            axes.axhline(float(np.mean(held)), label=series, **look)
    axes.set_xscale("log")
    axes.set(xlabel=key.replace("_", " "), ylabel="%")
    _look_at_the_top(axes, [(row[key], row["value"]) for row in own], [r["value"] for r in made])
    axes.legend(fontsize=7.5, loc="best")


def _look_at_the_top(
    axes: Axes, points: Sequence[tuple[float, float]], values: Sequence[float]
) -> None:
    """Name runs that broke down at the lower edge: on their scale all others look alike."""
    kept = [value for value in values if value > max(values) - BROKEN]
    fallen = [(x, value) for x, value in points if value not in kept]
    if not fallen:
        return
    margin = 0.15 * max(max(kept) - min(kept), 1.0)
    axes.set_ylim(min(kept) - 2 * margin, max(kept) + margin)
    for place, x in enumerate(sorted({x for x, _ in fallen})):
        lost = ", ".join(f"{value:.1f}" for at, value in fallen if at == x)
        axes.annotate(
            f"\N{DOWNWARDS ARROW} {lost}",
            (x, 0.03 + 0.07 * (place % 2)),
            xycoords=("data", "axes fraction"),
            ha="center",
            fontsize=7.5,
            color=COLOURS["blue"],
        )


def write(results: Sequence[Result], folder: Path) -> list[Path]:
    """Write both curves, PNG and CSV, where runs with such settings are stored."""
    written: list[Path] = []
    for key in KEYS:
        made = rows(results, key)
        if made:
            name = f"sweep-{key.replace('_', '-')}.png"
            written += figures.save(draw(made, key), made, folder / name, dpi=120)
    return written
