"""Pictures of training steps: variants side by side, and how cost grows with batch and width."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from surge.study import figures
from surge.study.bench import speed_table
from surge.study.bench.speed_sweeps import Sweep, compared, sweeps
from surge.study.bench.training_speed import Row
from surge.study.figures import COLOURS

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

PAINT = {"plain": "grey", "literal": "orange", "surge": "blue", "tied": "green"}


def draw(rows: Sequence[Row]) -> Figure:
    """Return bars of step times for every network, or lines where a batch or width varies."""
    found = sweeps(rows)
    swept = {sweep.network for sweep in found}
    alone = [n for n in dict.fromkeys(row.network for row in rows) if n not in swept]
    with figures.look():
        figure, axes = figures.new_figure(1, len(alone) + len(found), panel=(4.6, 3.4))
        for panel, name in zip(axes, alone, strict=False):
            own = [row for row in rows if row.network == name]
            _bars(panel, own)
            floored = any(row.floor_ms is not None for row in own)
            words = ", line: the floor" if floored else ""
            figures.panel_title(panel, name, f"milliseconds per training step{words}")
        for panel, sweep in zip(axes[len(alone) :], found, strict=True):
            _lines(panel, sweep)
    return figure


def draw_sweeps(found: Sequence[Sweep]) -> Figure:
    """Return one panel per sweep, both axes linear and from zero."""
    with figures.look():
        figure, axes = figures.new_figure(1, len(found), panel=(4.2, 3.2))
        for panel, sweep in zip(axes, found, strict=True):
            _lines(panel, sweep)
    return figure


def renew(folder: Path, docs: Path) -> list[Path]:
    """Draw the published picture from what is stored; without a sweep there is none."""
    found = compared(speed_table.everything(folder))
    picture = docs / speed_table.PICTURE
    if not found:
        figures.remove(picture)
        return []
    return figures.save(draw_sweeps(found), numbers(found), picture)


def numbers(found: Sequence[Sweep]) -> list[dict[str, object]]:
    """Return what a picture of sweeps is drawn from."""
    kept = ("network", "variant", "mode", "batch", "width", "step_ms", "hardware", "torch")
    return [
        {"against": sweep.by, **{name: getattr(row, name) for name in kept}}
        for sweep in found
        for row in sweep.rows
    ]


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


def _lines(axes: Axes, sweep: Sweep) -> None:
    modes = {row.mode for row in sweep.rows}
    for variant, mode in dict.fromkeys((row.variant, row.mode) for row in sweep.rows):
        own = [r for r in sweep.rows if (r.variant, r.mode) == (variant, mode)]
        axes.plot(
            [getattr(r, sweep.by) for r in own],
            [r.step_ms for r in own],
            marker="o",
            markersize=3,
            color=_colour(variant),
            linestyle={"eager": ":", "compiled": "--"}.get(mode, "-") if len(modes) > 1 else "-",
            label=f"{variant}, {mode}",
        )
    axes.set_xlabel("batch" if sweep.by == "batch" else "channels, times the network's own")
    axes.set_xlim(left=0)
    axes.set_ylim(bottom=0)
    axes.legend(fontsize=7)
    figures.panel_title(axes, sweep.network, f"milliseconds per training step, {sweep.fixed}")
