"""Pictures of training steps: variants side by side, and how their cost grows with the batch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from surge.study import figures
from surge.study.figures import COLOURS
from surge.study.training_speed import Row

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

PAINT = {"plain": "grey", "literal": "orange", "surge": "blue", "tied": "green"}


def draw(rows: Sequence[Row]) -> Figure:
    """Return one panel per network: bars of step times, or lines if there are several batches."""
    networks = list(dict.fromkeys(row.network for row in rows))
    with figures.look():
        figure, axes = figures.new_figure(1, len(networks), panel=(4.6, 3.4))
        for panel, name in zip(axes, networks, strict=True):
            own = [row for row in rows if row.network == name]
            grows = len({row.batch for row in own}) > 1
            (_lines if grows else _bars)(panel, own)
            floored = any(row.floor_ms is not None for row in own)
            words = ", against the batch" if grows else ", line: the floor" if floored else ""
            figures.panel_title(panel, name, f"milliseconds per training step{words}")
    return figure


def _colour(variant: str) -> str:
    return COLOURS[PAINT.get(variant, "ink")]


def _bars(axes: Axes, rows: Sequence[Row]) -> None:
    for place, row in enumerate(rows):
        axes.barh(place, row.step_ms, color=_colour(row.variant), alpha=0.85)
        axes.annotate(f" {row.step_ms:.2f}", (row.step_ms, place), va="center", fontsize=7.8)
        if row.floor_ms is not None:
            axes.plot([row.floor_ms] * 2, [place - 0.4, place + 0.4], color=COLOURS["ink"])
    axes.set_yticks(range(len(rows)), [f"{row.variant}, {row.mode}" for row in rows])
    axes.invert_yaxis()
    axes.grid(visible=False, axis="y")
    axes.margins(x=0.2)


def _lines(axes: Axes, rows: Sequence[Row]) -> None:
    for variant, mode in dict.fromkeys((row.variant, row.mode) for row in rows):
        own = sorted(
            (r for r in rows if (r.variant, r.mode) == (variant, mode)), key=lambda r: r.batch
        )
        axes.plot(
            [r.batch for r in own],
            [r.step_ms for r in own],
            marker="o",
            markersize=3,
            color=_colour(variant),
            linestyle={"eager": ":", "compiled": "--"}.get(mode, "-"),
            label=f"{variant}, {mode}",
        )
    axes.set_xlabel("batch")
    axes.set_xlim(left=0)
    axes.set_ylim(bottom=0)
    axes.legend(fontsize=7)
