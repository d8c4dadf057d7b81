"""Two blocks of a report page that respond: curves with values under the pointer, and bars."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape

Number = float | None


@dataclass(frozen=True)
class Curve:
    """One run: what it is called, how it is drawn, and its values epoch by epoch."""

    name: str
    group: str
    """Curves of a group are shown and hidden together, in one colour."""
    colour: str
    """A name of ``figures.COLOURS``."""
    dashed: bool
    epochs: Sequence[int]
    seconds: Sequence[float]
    """Time since the start, at every epoch."""
    values: Mapping[str, Sequence[Number]]
    """What is measured -> one value per epoch; None where it is not finite, False where it was not
    measured."""


@dataclass(frozen=True)
class Chart:
    """Curves of all runs; the reader chooses what is shown, against epochs or time."""

    curves: Sequence[Curve]
    axes: Mapping[str, str]
    """What is measured -> the words on its button."""
    logarithmic: Sequence[str] = ()
    """Which of them have a logarithmic axis."""
    title: str = "Learning curves"
    """What a screen reader says."""


@dataclass(frozen=True)
class Bars:
    """Rows of names with one bar per column, each column on its own scale."""

    rows: Sequence[Mapping[str, object]]
    columns: Mapping[str, str]
    """Which keys hold numbers, under which headings."""
    labels: Mapping[str, str]
    """Which keys hold the words before the bars, under which headings."""
    caption: str = ""


def chart_html(chart: Chart) -> str:
    """Return the place of a chart with its data; the page's script draws it."""
    data = {
        "axes": [
            {"key": key, "label": label, "log": key in chart.logarithmic}
            for key, label in chart.axes.items()
        ],
        "curves": [
            {
                "name": curve.name,
                "group": curve.group,
                "colour": curve.colour,
                "dashed": curve.dashed,
                "epochs": list(curve.epochs),
                "seconds": [_short(x) for x in curve.seconds],
                "values": {k: [_short(x) for x in v] for k, v in curve.values.items()},
            }
            for curve in chart.curves
        ],
    }
    # "<" never stands in JSON as a sign of its own: a name cannot end the script.
    text = json.dumps(data, separators=(",", ":"), allow_nan=False).replace("<", "\\u003c")
    return (
        f'<div class="chart" role="img" aria-label="{escape(chart.title)}">'
        f'<script type="application/json">{text}</script>'
        "<noscript><p>The curves are drawn by the page's own script, which is off.</p></noscript>"
        "</div>"
    )


def _short(value: Number) -> Number:
    """Return five digits, which a screen can show."""
    return value if value is None or value is False else float(f"{value:.5g}")


def bars_html(bars: Bars) -> str:
    """Return a table whose numbers are bars."""
    largest = {
        key: max((_size(row, key) for row in bars.rows), default=0.0) for key in bars.columns
    }
    heads = "".join(
        f"<th>{escape(name)}</th>" for name in (*bars.labels.values(), *bars.columns.values())
    )
    lines = []
    for row in bars.rows:
        words = "".join(f"<td>{escape(str(row.get(key, '')))}</td>" for key in bars.labels)
        drawn = "".join(
            _bar(_size(row, key), largest[key], str(row.get("tone", "blue")))
            for key in bars.columns
        )
        lines.append(f"<tr>{words}{drawn}</tr>")
    caption = f'<p class="caption">{escape(bars.caption)}</p>' if bars.caption else ""
    return (
        f'<div class="wide"><table class="bars"><thead><tr>{heads}</tr></thead>\n'
        f"<tbody>\n{chr(10).join(lines)}\n</tbody></table></div>{caption}"
    )


def _size(row: Mapping[str, object], key: str) -> float:
    value = row.get(key)
    return float(value) if isinstance(value, int | float) else 0.0


def _bar(value: float, largest: float, tone: str) -> str:
    width = 100 * value / largest if largest else 0.0
    return (
        f'<td><div class="bar"><i style="width:{width:.2f}%; background:var(--{escape(tone)})"></i>'
        f"<span>{value:,.0f}</span></div></td>"
    )
