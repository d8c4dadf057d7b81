"""The figures of a study: each is a title, the function that makes its rows, and a painter.

    rows = FIGURES["scale"].rows(runs)
    figures.save(draw("scale", rows), rows, "scale.png")

``draw`` puts all panels on one sheet; ``panels`` returns each as a figure of its own, for a page.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from surge.study import figures, probe_painters, probe_rows
from surge.study.figures import Row
from surge.study.stored_runs import StoredRun

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Groups = dict[str, list[Row]]
MOST_PANELS = 8
"""Panels that one figure shows at most; the CSV has all rows."""


@dataclass(frozen=True)
class Kind:
    """One figure: what it shows, from which rows, how."""

    title: str
    note: str
    rows: Callable[[Sequence[StoredRun]], list[Row]]
    paint: Callable[[Axes, Sequence[Mapping[str, Any]]], None]
    split: Callable[[Sequence[Mapping[str, Any]]], Groups]


def _by(*keys: str) -> Callable[[Sequence[Mapping[str, Any]]], Groups]:
    """Return a function that sorts rows into panels by some of their columns."""

    def split(rows: Sequence[Mapping[str, Any]]) -> Groups:
        # A column that is the same everywhere says nothing in a title.
        telling = [key for key in keys if len({row[key] for row in rows}) > 1] or list(keys[:1])
        found: Groups = {}
        for row in rows:
            found.setdefault(", ".join(str(row[key]) for key in telling), []).append(row)
        return found

    return split


def _whole(rows: Sequence[Mapping[str, Any]]) -> Groups:
    return {"": list(rows)} if rows else {}


def _maps(rows: Sequence[Mapping[str, Any]]) -> Groups:
    """Both heat maps, with the range of colours that they share."""
    sizes = [abs(row[key]) for row in rows for key in ("without", "with") if row[key]]
    if not sizes:
        return {}
    ends = {"smallest": max(min(sizes), max(sizes) * 1e-5), "largest": max(sizes)}
    return {
        f"{key} SURGE": [{**row, "value": row[key], **ends} for row in rows]
        for key in ("without", "with")
    }


def _line(axis: str, *, logarithmic: bool = False, zero: bool = False) -> Callable[..., None]:
    def paint(axes: Axes, rows: Sequence[Mapping[str, Any]]) -> None:
        probe_painters.layers(axes, rows, axis=axis, logarithmic=logarithmic, zero=zero)

    return paint


def _arms(axis: str, *, logarithmic: bool = False) -> Callable[..., None]:
    def paint(axes: Axes, rows: Sequence[Mapping[str, Any]]) -> None:
        probe_painters.curves(axes, rows, axis=axis, logarithmic=logarithmic)

    return paint


FIGURES: Mapping[str, Kind] = {
    "final-metric": Kind(
        "After the last epoch",
        "a dot per seed, a line at their mean",
        probe_rows.final_metric,
        probe_painters.final,
        _whole,
    ),
    "accuracy-time": Kind(
        "Accuracy against training time",
        "a line per run",
        probe_rows.accuracy_against_time,
        probe_painters.time,
        _whole,
    ),
    "flip-rate": Kind(
        "Weight bits that flip",
        "per epoch, whole network; mean over the seeds, band: lowest to highest",
        probe_rows.flip_rate,
        _arms("% of the bits", logarithmic=True),
        _whole,
    ),
    "gradient-map": Kind(
        "Activation gradient of one sample in one layer",
        "log10 of its size; grey: exactly zero, nothing arrives",
        probe_rows.gradient_map,
        probe_painters.heat_map,
        _maps,
    ),
    "gradient-distribution": Kind(
        "Sizes of the activation gradient",
        "same output gradient, without and with SURGE; zeros are in the legend",
        probe_rows.gradient_histogram,
        probe_painters.distribution,
        _by("layer", "arm"),
    ),
    "gradient-cumulative": Kind(
        "Share of activation gradients below a size",
        "a curve begins at the share that is exactly zero",
        probe_rows.gradient_histogram,
        probe_painters.cumulative,
        _by("layer", "arm"),
    ),
    "weight-distribution": Kind(
        "Latent weights of one layer",
        "in its standard deviations; near zero: below 0.1 of them",
        probe_rows.weight_histogram,
        probe_painters.weights,
        _whole,
    ),
    "near-zero": Kind(
        "Weights near zero",
        "mean over the layers; mean over the seeds, band: lowest to highest",
        probe_rows.near_zero,
        _arms("% of the weights"),
        _whole,
    ),
    "weight-cosine": Kind(
        "Weight gradients of both paths",
        "their cosine, layer by layer",
        probe_rows.weight_cosine,
        _line("cosine", zero=True),
        _by("series", "arm"),
    ),
    "input-cosine": Kind(
        "Input gradients of both paths",
        "cos(g_b, g_a), layer by layer",
        probe_rows.input_cosine,
        _line("cosine", zero=True),
        _by("arm"),
    ),
    "scale": Kind(
        "The scale",
        "layer by layer; band: lowest to highest seed",
        probe_rows.scale,
        _line("scale", logarithmic=True),
        _by("arm"),
    ),
    "dose": Kind(
        "The delivered dose",
        "share of the main gradient that arrives below the clamp",
        probe_rows.dose,
        _line("% of |g_b|", logarithmic=True),
        _by("arm"),
    ),
    "norms": Kind(
        "Norms of both gradients",
        "on the recorded batch",
        probe_rows.norms,
        _line("norm", logarithmic=True),
        _by("series", "arm"),
    ),
    "clipped-share": Kind(
        "Inputs whose surrogate is exactly zero",
        "layer by layer",
        probe_rows.clipped_share,
        _line("% of the inputs"),
        _by("arm"),
    ),
    "optimal-scale": Kind(
        "The scale in use, and what would be best",
        "against a smooth reference network; mean over the seeds",
        probe_rows.optimal_scale,
        probe_painters.optima,
        _by("layer", "arm"),
    ),
    "premises": Kind(
        "What the corollary takes for granted",
        "layer by layer; band: lowest to highest seed",
        probe_rows.premises,
        _line("", zero=True),
        _by("series", "arm"),
    ),
    "reference-cosine": Kind(
        "Closeness to the smooth network's gradient",
        "cosine with g*, layer by layer",
        probe_rows.reference_cosine,
        _line("cosine", zero=True),
        _by("series", "arm"),
    ),
}
"""Every figure that stored runs can give, by the name of its files."""


def panels(name: str, rows: Sequence[Row]) -> dict[str, Figure]:
    """Return every panel as a figure without title, by what is special to it."""
    kind = FIGURES[name]
    made = {}
    for title, mine in list(kind.split(rows).items())[:MOST_PANELS]:
        with figures.look():
            figure, (axes,) = figures.new_figure(panel=(4.4, 3.1))
            kind.paint(axes, mine)
        made[title] = figure
    return made


def draw(name: str, rows: Sequence[Row]) -> Figure:
    """Return all panels on one sheet, two beside each other."""
    kind = FIGURES[name]
    groups = list(kind.split(rows).items())[:MOST_PANELS]
    columns = 1 if len(groups) < 2 else 2
    with figures.look():
        count = max(len(groups), 1)
        figure, places = figures.new_figure(-(-count // columns), columns, panel=(4.6, 3.3))
        for axes, (title, mine) in zip(places, groups, strict=False):
            kind.paint(axes, mine)
            figures.panel_title(axes, title or kind.title, kind.note if count == 1 else "")
        for axes in places[len(groups) :]:
            axes.set_axis_off()
        if count > 1:
            figure.suptitle(f"{kind.title} ({kind.note})", x=0.01, ha="left", fontsize=10)
    return figure


def write_all(runs: Sequence[StoredRun], folder: Path) -> list[Path]:
    """Write every figure that these runs have numbers for, PNG and CSV."""
    written: list[Path] = []
    for name, kind in FIGURES.items():
        rows = kind.rows(runs)
        if kind.split(rows):
            written += figures.save(draw(name, rows), rows, folder / f"{name}.png", dpi=120)
    return written
