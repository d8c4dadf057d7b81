"""The table ``common`` as a picture: every method with and without SURGE, and all pooled."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from surge.study import figures
from surge.study.figures import COLOURS
from surge.study.statistics import Estimate, estimate
from surge.study.tables import TableRow, base_row

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

PICTURE = Path("images/common.png")
"""Beside the page that shows it."""


@dataclass(frozen=True)
class Pair:
    """One method: its row, and its row with SURGE where there is one."""

    name: str
    without: Estimate
    with_surge: Estimate | None
    difference: Estimate | None


def pairs(rows: Sequence[TableRow]) -> list[Pair]:
    """Return the methods of a table, the least accurate first."""
    found = {row.row: row for row in rows}
    made = []
    for name, row in found.items():
        if base_row(name) is not None or row.last is None:
            continue
        other = found.get(f"{name}-surge")
        last, difference = (other.last, other.difference) if other else (None, None)
        made.append(Pair(name.partition("-")[2], row.last, last, difference))
    return sorted(made, key=lambda pair: pair.without.mean)


def pooled(found: Sequence[Pair]) -> Estimate | None:
    """Estimate the difference over methods, each of which counts once; needs two."""
    means = [pair.difference.mean for pair in found if pair.difference is not None]
    return estimate(means) if len(means) > 1 else None


def summary(rows: Sequence[TableRow]) -> str:
    """Return what all methods together say, and their picture; nothing without two pairs."""
    over = pooled(pairs(rows))
    if over is None:
        return ""
    low, high = over.interval
    return (
        f"SURGE minus base over {over.n} methods, each counted once: {over.mean:+.2f} points, 95 % "
        f"interval over methods, not over seeds, [{low:+.2f}, {high:+.2f}].\n\n"
        f"![Accuracy of every method with and without SURGE, and the difference]({PICTURE})\n"
    )


def draw(found: Sequence[Pair]) -> Figure:
    """Return accuracies on the left, differences with their intervals on the right."""
    height = 1.0 + 0.24 * (len(found) + 1)
    with figures.look():
        figure, (left, right) = figures.new_figure(1, 2, panel=(4.2, height))
        _accuracies(left, found)
        _differences(right, found)
    return figure


def _accuracies(axes: Axes, found: Sequence[Pair]) -> None:
    for place, pair in enumerate(found):
        if pair.with_surge is not None:
            ends = [pair.without.mean, pair.with_surge.mean]
            axes.plot(ends, [place, place], color=COLOURS["pale"], linewidth=2.5, zorder=1)
            axes.plot(ends[1], place, "o", color=COLOURS["green"], markersize=5)
        _hollow(axes, pair.without.mean, place)
    _hollow(axes, math.nan, 0, label="alone")
    axes.plot(math.nan, 0, "o", color=COLOURS["green"], markersize=5, label="with SURGE")
    axes.legend(loc="lower right")
    axes.set_yticks(range(len(found)), [pair.name for pair in found])
    axes.set_ylim(-1.7, len(found) - 0.4)
    axes.set_xlabel("test accuracy after the last epoch, %")
    figures.panel_title(axes, "One protocol for all", "ResNet-20 on CIFAR-10, ReCU's schedule")


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
    over = pooled(found)
    if over is not None:
        figures.dot_and_interval(axes, -1, over, COLOURS["ink"])
    axes.axvline(0, color=COLOURS["grey"], linewidth=1)
    axes.set_yticks([-1, *range(len(found))], ["all methods", *(pair.name for pair in found)])
    axes.set_ylim(-1.7, len(found) - 0.4)
    axes.set_xlabel("points")
    seeds = {pair.difference.n for pair in found if pair.difference is not None}
    words = "95 % intervals" if seeds - {1} else "one pair each; bar: 95 % interval over methods"
    figures.panel_title(axes, "With SURGE minus alone", words)


def numbers(found: Sequence[Pair]) -> list[dict[str, object]]:
    """Return what the picture is drawn from."""
    return [
        {
            "method": pair.name,
            "seeds": pair.without.n,
            "alone": pair.without.mean,
            "with_surge": pair.with_surge.mean if pair.with_surge else "",
            "pairs": pair.difference.n if pair.difference else 0,
            "difference": pair.difference.mean if pair.difference else "",
        }
        for pair in found
    ]


def renew(rows: Sequence[TableRow], docs: Path) -> list[Path]:
    """Draw the published picture; without two pairs there is none."""
    found, picture = pairs(rows), docs / PICTURE
    if pooled(found) is None:
        figures.remove(picture)
        return []
    return figures.save(draw(found), numbers(found), picture)
