"""The house look of every figure, and the one way to save one.

A figure function takes results and returns a matplotlib ``Figure``; ``save`` writes it as PNG with
the numbers it was drawn from as CSV beside it. No pyplot: nothing global is left behind and no
display is needed. matplotlib is imported inside the functions, it is an extra.
"""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from surge.errors import MissingDependencyError
from surge.files import write_whole

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from surge.study.statistics import Estimate

__all__ = [
    "COLOURS",
    "Mark",
    "Row",
    "dot_and_interval",
    "draw_series",
    "frame",
    "logarithmic",
    "look",
    "new_figure",
    "panel_title",
    "remove",
    "save",
    "whole_epochs",
    "write_csv",
    "write_json",
]

COLOUR_COUNT = 128

Row = Mapping[str, object]
"""One line of a table: column name -> value."""

COLOURS: Mapping[str, str] = {
    "ink": "#222222",
    "grey": "#7f7f7f",
    "pale": "#d9d9d9",
    "blue": "#0072b2",
    "sky": "#56b4e9",
    "vermilion": "#d55e00",
    "orange": "#e69f00",
    "green": "#00795a",
    "mint": "#4cc4a0",
    "purple": "#a4508b",
}
"""Colours that stay apart for colour-blind readers (after Okabe and Ito) and in grey print."""


_LOOK: Mapping[str, Any] = {
    "font.family": "DejaVu Sans",
    "font.size": 9.0,
    "text.color": COLOURS["ink"],
    "axes.titlesize": 10.0,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "axes.labelsize": 9.0,
    "axes.labelcolor": COLOURS["ink"],
    "axes.edgecolor": COLOURS["grey"],
    "axes.linewidth": 0.8,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": "#ececec",
    "grid.linewidth": 0.7,
    "xtick.color": COLOURS["grey"],
    "ytick.color": COLOURS["grey"],
    "xtick.labelcolor": COLOURS["ink"],
    "ytick.labelcolor": COLOURS["ink"],
    "xtick.labelsize": 8.0,
    "ytick.labelsize": 8.0,
    "figure.labelsize": 9.5,
    "legend.frameon": False,
    "legend.fontsize": 8.5,
    "lines.solid_capstyle": "round",
    "figure.facecolor": "white",
    "savefig.facecolor": "white",
}


@contextmanager
def look() -> Iterator[None]:
    """Draw everything inside the block in the house look; matplotlib's settings come back after.

    Raises:
        MissingDependencyError: matplotlib is not installed.
    """
    try:
        import matplotlib
    except ImportError as error:
        raise MissingDependencyError(
            "figures need matplotlib: pip install 'surge-bnn[demo]'"
        ) from error
    with matplotlib.rc_context(dict(_LOOK)):
        yield


def require() -> None:
    """Raise MissingDependencyError where nothing could be drawn."""
    with look():
        pass


def new_figure(
    rows: int = 1, columns: int = 1, *, panel: tuple[float, float] = (3.6, 2.7)
) -> tuple[Figure, list[Axes]]:
    """Return an empty figure and its panels in reading order; call it inside ``look()``."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    width, height = panel
    figure = Figure(figsize=(width * columns, height * rows), layout="constrained")
    FigureCanvasAgg(figure)
    panels = list(figure.subplots(rows, columns, squeeze=False).flat)
    for axes in panels:
        axes.locator_params(nbins=6)
    return figure, panels


def dot_and_interval(axes: Axes, place: float, value: Estimate, colour: str) -> None:
    """Draw a mean as a dot at a height, and its 95 % interval, if it has one, as a line."""
    if value.n > 1:
        axes.plot(value.interval, [place, place], color=colour, linewidth=1.6)
    axes.plot(value.mean, place, "o", color=colour, markersize=5)


def panel_title(axes: Axes, title: str, subtitle: str = "") -> None:
    """Write a bold title above a panel and, if given, a quiet line of facts under it."""
    axes.set_title(title, pad=8.0 + 11.0 * len(subtitle.splitlines()))
    if subtitle:
        axes.annotate(
            subtitle,
            xy=(0.0, 1.0),
            xytext=(0.0, 5.0),
            xycoords="axes fraction",
            textcoords="offset points",
            va="bottom",
            fontsize=7.8,
            color="#555555",
            linespacing=1.25,
        )


@dataclass(frozen=True)
class Mark:
    """How one series of a panel is drawn."""

    colour: str
    """Line and marker colour."""
    kind: str
    """``line``, ``upright`` (a vertical line at x), ``dot``, ``hollow`` or ``triangle``."""
    dashes: str = "-"
    """matplotlib line style of lines."""
    width: float = 1.3
    """Line width in points."""
    size: float = 5.0
    """Marker size in points."""


_SHAPES = {"dot": "o", "hollow": "o", "triangle": "^"}


def draw_series(
    axes: Axes, rows: Sequence[Mapping[str, Any]], marks: Mapping[str, Mark], *, x: str, y: str
) -> None:
    """Draw rows by their ``series``, in the order of ``marks``.

    The columns ``<x>_bar`` and ``<y>_bar``, where a row has them, become error bars.
    """
    for series, mark in marks.items():
        chosen = [row for row in rows if row["series"] == series]
        across, up = [row[x] for row in chosen], [row[y] for row in chosen]
        line: dict[str, Any] = {"color": mark.colour, "linewidth": mark.width, "label": series}
        if mark.kind == "upright":
            for position in across:
                axes.axvline(position, linestyle=mark.dashes, zorder=1.5, **line)
        elif mark.kind == "line":
            axes.plot(across, up, linestyle=mark.dashes, **line)
        else:
            axes.errorbar(
                across,
                up,
                xerr=[row.get(f"{x}_bar", 0.0) for row in chosen],
                yerr=[row.get(f"{y}_bar", 0.0) for row in chosen],
                fmt=_SHAPES[mark.kind],
                markersize=mark.size,
                markerfacecolor="white" if mark.kind == "hollow" else mark.colour,
                capsize=2.5 if mark.kind == "dot" else 0.0,
                zorder=3,
                **line,
            )


def frame(figure: Figure, panels: Sequence[Axes], *, x: str, y: str) -> None:
    """Label the axes and put one legend, from the first panel, below all panels."""
    for axes in panels:
        place = axes.get_subplotspec()
        if place is None or place.is_last_row():
            axes.set_xlabel(x)
    if len(panels) == 1:
        panels[0].set_ylabel(y)
    else:
        figure.supylabel(y)
    _legend_below(figure, panels[0])


def share_legend(figure: Figure, panels: Sequence[Axes]) -> None:
    """Put one legend below all panels where each would have the same over its data."""
    held = [legend for axes in panels if (legend := axes.get_legend())]
    names = {tuple(text.get_text() for text in legend.get_texts()) for legend in held}
    if len(panels) < 2 or len(held) < len(panels) or len(names) > 1:
        return
    for legend in held:
        legend.remove()
    _legend_below(figure, panels[0])


def _legend_below(figure: Figure, axes: Axes) -> None:
    handles, labels = axes.get_legend_handles_labels()
    columns = min(len(labels), 2 if figure.get_figwidth() < 8 else 6)
    figure.legend(handles, labels, loc="outside lower center", ncols=columns)


def whole_epochs(axes: Axes) -> None:
    """Name whole epochs below a panel: there is none between two."""
    from matplotlib.ticker import MaxNLocator

    axes.xaxis.set_major_locator(MaxNLocator(nbins=6, integer=True, min_n_ticks=1))


def logarithmic(axes: Axes) -> None:
    """Give a drawn panel a logarithmic axis with plain numbers, however little of it is seen."""
    from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullLocator

    axes.set_yscale("log", nonpositive="mask")
    low, high = axes.get_ylim()
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    if high < 5 * low:
        axes.yaxis.set_major_locator(MaxNLocator(nbins=6, steps=[1, 2, 5, 10]))
    elif high < 200 * low:
        axes.yaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
    axes.yaxis.set_minor_locator(NullLocator())


def save(figure: Figure, rows: Sequence[Row], path: Path | str, *, dpi: int = 160) -> list[Path]:
    """Write the figure as PNG and the rows it was drawn from as CSV beside it.

    Both appear complete or not at all; missing folders are made. Returns the two paths.
    """
    picture = Path(path).with_suffix(".png")
    buffer = io.BytesIO()
    with look():
        figure.savefig(buffer, format="png", dpi=dpi, metadata={"Software": None})
    table = write_csv(rows, picture.with_suffix(".csv"))
    write_whole(picture, with_few_colours(buffer))
    return [picture, table]


def with_few_colours(picture: io.BytesIO) -> bytes:
    """Return a PNG with a palette: enough for lines, letters and maps, and a third as large."""
    from PIL import Image

    held = io.BytesIO()
    Image.open(picture).convert("RGB").quantize(COLOUR_COUNT).save(held, "PNG", optimize=True)
    return held.getvalue()


def remove(path: Path) -> None:
    """Delete a picture and its numbers, if they are there."""
    for file in (path, path.with_suffix(".csv")):
        file.unlink(missing_ok=True)


def write_csv(rows: Sequence[Row], path: Path | str) -> Path:
    """Write rows as CSV, atomically; the columns are the union of all keys in order met."""
    columns = list(dict.fromkeys(key for row in rows for key in row))
    text = io.StringIO()
    writer = csv.DictWriter(text, columns, restval="", lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return write_whole(Path(path), text.getvalue().encode())


def write_json(value: object, path: Path | str) -> Path:
    """Write a value as indented JSON, atomically."""
    return write_whole(Path(path), (json.dumps(value, indent=2) + "\n").encode())
