"""A table of all methods as a picture: each with and without SURGE, and all of them pooled."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from surge.study import figures
from surge.study.all_methods import PROTOCOLS, Pair, over_methods, over_seeds
from surge.study.figures import COLOURS
from surge.study.statistics import Estimate

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


def picture(table: str) -> Path:
    """Return where the picture of a table is, beside the page that shows it."""
    return Path("images") / f"{table}.png"


def summary(table: str, found: Sequence[Pair]) -> str:
    """Return what all methods together say, and their picture; nothing without two pairs."""
    methods, seeds = over_methods(found), over_seeds(found)
    if methods is None:
        return ""
    words = f"over methods {_ends(methods)}"
    if seeds is not None and seeds.n > 1:
        words += f"; over the {seeds.n} seeds that all have {seeds.mean:+.2f} {_ends(seeds)}"
    else:
        words += ", not over seeds"
    drawn = "Accuracy of every method with and without SURGE, and the difference"
    return (
        f"SURGE minus base, mean of {methods.n} methods: {methods.mean:+.2f} points; 95 % interval "
        f"{words}.\n\n![{drawn}]({picture(table)})\n"
    )


def _ends(value: Estimate) -> str:
    low, high = value.interval
    return f"[{low:+.2f}, {high:+.2f}]"


def draw(table: str, found: Sequence[Pair]) -> Figure:
    """Return accuracies on the left, differences with their intervals on the right."""
    height = 1.0 + 0.24 * (len(found) + 1)
    with figures.look():
        figure, (left, right) = figures.new_figure(1, 2, panel=(4.2, height))
        _accuracies(left, found)
        figures.panel_title(left, "One protocol for all", PROTOCOLS[table])
        _differences(right, found)
    return figure


def _accuracies(axes: Axes, found: Sequence[Pair]) -> None:
    for place, pair in enumerate(found):
        if pair.with_surge is not None and pair.with_surge.last is not None:
            ends = [pair.alone.mean, pair.with_surge.last.mean]
            axes.plot(ends, [place, place], color=COLOURS["pale"], linewidth=2.5, zorder=1)
            axes.plot(ends[1], place, "o", color=COLOURS["green"], markersize=5)
        _hollow(axes, pair.alone.mean, place)
    _hollow(axes, math.nan, 0, label="alone")
    axes.plot(math.nan, 0, "o", color=COLOURS["green"], markersize=5, label="with SURGE")
    axes.legend(loc="lower right")
    axes.set_yticks(range(len(found)), [pair.name for pair in found])
    axes.set_ylim(-1.7, len(found) - 0.4)
    axes.set_xlabel("test accuracy after the last epoch, %")


def _hollow(axes: Axes, x: float, place: float, label: str = "") -> None:
    axes.plot(
        x,
        place,
        "o",
        color=COLOURS["grey"],
        markerfacecolor="white",
        markersize=5,
        zorder=1.5,
        label=label,
    )


def _differences(axes: Axes, found: Sequence[Pair]) -> None:
    for place, pair in enumerate(found):
        if pair.difference is not None:
            figures.dot_and_interval(axes, place, pair.difference, COLOURS["green"])
    over = over_methods(found)
    if over is not None:
        figures.dot_and_interval(axes, -1, over, COLOURS["ink"])
    axes.axvline(0, color=COLOURS["grey"], linewidth=1)
    axes.set_yticks([-1, *range(len(found))], ["all methods", *(pair.name for pair in found)])
    axes.set_ylim(-1.7, len(found) - 0.4)
    axes.set_xlabel("points")
    seeds = {pair.difference.n for pair in found if pair.difference is not None}
    green = "95 % intervals over seeds" if seeds - {1} else "one pair each"
    figures.panel_title(axes, "With SURGE minus alone", f"{green}; black: over methods")


def numbers(found: Sequence[Pair]) -> list[dict[str, object]]:
    """Return what the picture is drawn from."""
    made: list[dict[str, object]] = []
    for pair in found:
        last = pair.with_surge.last if pair.with_surge else None
        made.append(
            {
                "method": pair.name,
                "seeds": pair.alone.n,
                "alone": pair.alone.mean,
                "with_surge": last.mean if last else "",
                "pairs": pair.difference.n if pair.difference else 0,
                "difference": pair.difference.mean if pair.difference else "",
            }
        )
    return made


def renew(table: str, found: Sequence[Pair], docs: Path) -> list[Path]:
    """Draw the published picture of a table; without two pairs there is none."""
    path = docs / picture(table)
    if over_methods(found) is None:
        figures.remove(path)
        return []
    return figures.save(draw(table, found), numbers(found), path)
