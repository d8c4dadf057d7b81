"""Pictures of inference times: the engines side by side, where time goes, and how it grows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from surge.study import figures
from surge.study.bench.latency import Row, Step, ratio
from surge.study.figures import COLOURS

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

FAMILIES = {"surge": "green", "onnxruntime": "blue", "openvino": "orange"}
MOST_STEPS = 24
"""Steps that are drawn by name; the others are summed up."""


def colour(engine: str) -> str:
    """Return the colour of an engine's family."""
    return COLOURS[FAMILIES.get(engine.split()[0], "grey")]


def draw(rows: Sequence[Row], steps: Sequence[Step], title: str) -> Figure:
    """Return the picture of one network: latency by engine and, if known, by step."""
    with figures.look():
        panels = 2 if steps else 1
        figure, axes = figures.new_figure(1, panels, panel=(5.4, 4.2 if steps else 2.9))
        _engines(axes[0], rows)
        figures.panel_title(axes[0], title, "median, whisker to the 90th percentile")
        if steps:
            _steps(axes[1], steps)
            figures.panel_title(axes[1], "Where the packed network spends it", "microseconds")
    return figure


def _engines(axes: Axes, rows: Sequence[Row]) -> None:
    for place, row in enumerate(rows):
        axes.barh(
            place,
            row.median_ms,
            xerr=[[0.0], [max(row.p90_ms - row.median_ms, 0.0)]],
            color=colour(row.engine),
            alpha=0.9 if "surge" in row.engine or "binary" in row.engine else 0.55,
            error_kw={"elinewidth": 0.8, "capsize": 2.0, "ecolor": COLOURS["ink"]},
        )
        gain = ratio(rows, "onnxruntime fp32", row.engine)
        text = f" {row.median_ms:.3g} ms" + ("" if gain is None else f"  ({gain:.1f}x)")
        axes.annotate(text, (row.p90_ms, place), va="center", fontsize=7.8)
    axes.set_yticks(range(len(rows)), [row.engine for row in rows])
    axes.invert_yaxis()
    axes.set_xlabel("milliseconds; in brackets: times onnxruntime fp32's speed")
    axes.grid(visible=False, axis="y")
    axes.margins(x=0.3)


def _steps(axes: Axes, steps: Sequence[Step]) -> None:
    shown = list(steps)
    if len(shown) > MOST_STEPS:
        kept = set(sorted(range(len(steps)), key=lambda i: -steps[i].micros)[: MOST_STEPS - 1])
        rest = sum(step.micros for i, step in enumerate(steps) if i not in kept)
        shown = [step for i, step in enumerate(steps) if i in kept]
        shown.append(Step(f"{len(steps) - len(kept)} others", "other", rest))
    for place, step in enumerate(shown):
        axes.barh(place, step.micros, color=COLOURS["green" if step.binary else "grey"])
    axes.set_yticks(range(len(shown)), [f"{s.name or s.kind} ({s.kind})" for s in shown])
    axes.tick_params(axis="y", labelsize=6.5)
    axes.invert_yaxis()
    axes.set_xlabel("green: binary layers, grey: the rest")
    axes.grid(visible=False, axis="y")


def draw_sweep(rows: Sequence[Row], name: str) -> Figure:
    """Return latency against the pixels of an image and against the batch.

    The thin line is the proportion through the first point: on it, twice the work is twice the
    time.
    """
    sizes = [row for row in rows if row.batch == 1 and row.size]
    batches = [row for row in rows if row.size == rows[-1].size]
    panels: list[tuple[str, Sequence[Row], Any]] = [
        ("images per call", batches, lambda row: row.batch)
    ]
    if len({row.size for row in sizes}) > 1:
        panels.insert(0, ("pixels of the image, thousands", sizes, lambda row: row.size**2 / 1000))
    with figures.look():
        figure, places = figures.new_figure(1, len(panels), panel=(4.4, 3.2))
        for axes, (label, mine, across) in zip(places, panels, strict=True):
            for engine in dict.fromkeys(row.engine for row in mine):
                points = sorted((across(r), r.fair_ms) for r in mine if r.engine == engine)
                xs, ys = zip(*points, strict=True)
                axes.plot(xs, ys, "o-", color=colour(engine), label=engine, markersize=4)
                axes.plot(xs, [ys[0] * x / xs[0] for x in xs], color=colour(engine), linewidth=0.6)
            axes.set_xlabel(label)
            busy = any(row.fair_ms != row.median_ms for row in mine)
            axes.set_ylabel("processor time, ms, median" if busy else "milliseconds, median")
            axes.set_ylim(bottom=0)
        figures.panel_title(places[0], name, "thin: in proportion to the first point")
        places[-1].legend()
    return figure
