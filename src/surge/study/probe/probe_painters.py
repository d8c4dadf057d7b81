"""How the panels of a study's figures are painted, from rows alone."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from surge.study import figures
from surge.study.arms import ArmStyle
from surge.study.figures import COLOURS

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Points = Sequence[Mapping[str, Any]]

_CYCLE = ("blue", "vermilion", "green", "purple", "orange", "sky", "mint", "ink")
_DEPTHS = ("blue", "sky", "green", "mint", "orange", "vermilion", "purple")
_NAMED = 6
"""Layers that a legend can name; of more it names the first, the middle and the last."""
MOST_NAMED_ARMS = 9
LEAST_POINTS = 2.0
"""Width of an axis of accuracies, in percent, at least."""
MOST_POINTS = 60
"""Epochs of a curve that are drawn; hundreds of tests of several arms are a cloud."""


def arm_styles(arms: Sequence[str]) -> dict[str, ArmStyle]:
    """Return a style for every arm, by its place: solid with SURGE, dashed without.

    >>> [style.dashes for style in arm_styles(["cnn-recu", "cnn-recu-surge"]).values()]
    ['--', '-']
    """
    return {
        arm: ArmStyle(COLOURS[_CYCLE[place % len(_CYCLE)]], "-" if "-surge" in arm else "--")
        for place, arm in enumerate(dict.fromkeys(arms))
    }


def short_names(arms: Sequence[str]) -> dict[str, str]:
    """Return arms without the table and the network, where all have the same.

    >>> short_names(["digits-cnn-recu", "digits-cnn-recu-surge eta=0.1"])
    {'digits-cnn-recu': 'recu', 'digits-cnn-recu-surge eta=0.1': 'recu-surge eta=0.1'}
    """
    words = {arm: arm.split("-", 2) for arm in dict.fromkeys(arms)}
    alike = len({tuple(parts[:2]) for parts in words.values()}) == 1
    short = alike and all(len(parts) == 3 for parts in words.values())
    return {arm: parts[2] if short else arm for arm, parts in words.items()}


def short_layer(name: str, most: int = 36) -> str:
    """Return the name of a layer without the modules it lies in, where it would be too long.

    >>> short_layer("layer1.0.conv1"), short_layer("bert.encoder.layer.3.attention.self.query", 30)
    ('layer1.0.conv1', '…layer.3.attention.self.query')
    """
    short = name
    while len(short) > most and "." in short:
        short = short.partition(".")[2]
    return short if short == name else f"…{short}"


def depth_colour(place: int, count: int) -> str:
    """Return the colour of a layer: blue at the input, purple at the output."""
    return COLOURS[_DEPTHS[round(place * (len(_DEPTHS) - 1) / max(count - 1, 1))]]


def _grouped(rows: Points, key: str) -> dict[str, list[Mapping[str, Any]]]:
    found: dict[str, list[Mapping[str, Any]]] = {}
    for row in rows:
        found.setdefault(str(row[key]), []).append(row)
    return found


def _columns(rows: Points, *keys: str) -> list[list[Any]]:
    return [[row[key] for row in rows] for key in keys]


def _band(axes: Axes, rows: Points, colour: str, **line: Any) -> None:
    epoch, low, mean, high = _columns(rows, "epoch", "low", "mean", "high")
    axes.fill_between(epoch, low, high, color=colour, alpha=0.13, linewidth=0)
    marker: dict[str, Any] = {"marker": "o", "markersize": 3.0} if len(rows) < 3 else {}
    axes.plot(epoch, mean, color=colour, **marker, **line)


def _finish(axes: Axes, *, x: str, y: str, logarithmic: bool = False) -> None:
    if (
        logarithmic
        and axes.lines
        and all(np.all(np.asarray(line.get_ydata(), dtype=float) >= 0) for line in axes.lines)
    ):
        figures.logarithmic(axes)
    if x == "epoch":
        figures.whole_epochs(axes)
    axes.set(xlabel=x, ylabel=y)
    axes.margins(x=0.02)
    handles, labels = axes.get_legend_handles_labels()
    if 1 < len(labels) <= MOST_NAMED_ARMS:
        box = {"frameon": True, "framealpha": 0.6, "edgecolor": "none"}  # lines may pass below
        axes.legend(handles, labels, fontsize=7.5, loc="best", **box)


def layers(axes: Axes, rows: Points, *, axis: str, logarithmic: bool, zero: bool) -> None:
    """One line per layer over the epochs, coloured by depth."""
    found = _grouped(rows, "layer")
    order = sorted(found, key=lambda name: found[name][0]["depth"])
    named = order if len(order) <= _NAMED else [order[0], order[len(order) // 2], order[-1]]
    for place, name in enumerate(order):
        label = short_layer(name) if name in named else "_"
        colour = depth_colour(place, len(order))
        _band(axes, found[name], colour, linewidth=1.5, label=label)
    if zero:
        axes.axhline(0.0, color=COLOURS["grey"], linewidth=0.8, linestyle=":", zorder=0)
    _finish(axes, x="epoch", y=axis, logarithmic=logarithmic)


def curves(axes: Axes, rows: Points, *, axis: str, logarithmic: bool) -> None:
    """One line per arm over the epochs."""
    found = _grouped(rows, "arm")
    names = short_names(list(found))
    for arm, style in arm_styles(list(found)).items():
        look = {"linestyle": style.dashes, "linewidth": style.width, "label": names[arm]}
        backward = found[arm][:: -math.ceil(len(found[arm]) / MOST_POINTS)]  # with the last one
        _band(axes, backward[::-1], style.colour, **look)
    _finish(axes, x="epoch", y=axis, logarithmic=logarithmic)


def final(axes: Axes, rows: Points) -> None:
    """A dot per seed and a line at the mean, one row of dots per arm."""
    found = _grouped(rows, "arm")
    for place, (arm, style) in enumerate(arm_styles(list(found)).items()):
        values = [row["value"] for row in found[arm]]
        mean = float(np.mean(values))
        level = len(found) - 1 - place
        apart = min(0.1, 0.6 / max(len(values) - 1, 1))  # within the reach of the mean's line
        spots = [level + apart * (k - (len(values) - 1) / 2) for k in range(len(values))]
        axes.plot([mean, mean], [level - 0.3, level + 0.3], color=style.colour, linewidth=2.2)
        axes.plot(values, spots, "o", color=style.colour, markersize=5.0, linestyle="none")
    short = reversed(short_names(list(found)).values())
    names = [name if len(name) < 30 else f"…{name[-28:]}" for name in short]
    axes.set_yticks(range(len(found)), names, fontsize=8 if len(found) < 12 else 5)
    axes.set(xlabel="%")
    axes.grid(visible=False, axis="y")
    axes.margins(x=0.08, y=0.06)
    low, high = axes.get_xlim()
    if high - low < LEAST_POINTS:  # else the smallest difference fills a panel
        axes.set_xlim((low + high - LEAST_POINTS) / 2, (low + high + LEAST_POINTS) / 2)


def heat_map(axes: Axes, rows: Points) -> None:
    """Channels by positions; exact zeros have a colour of their own."""
    from matplotlib import colormaps
    from matplotlib.colors import ListedColormap

    shape = tuple(max(row[key] for row in rows) + 1 for key in ("channel", "position"))
    table = np.zeros(shape)
    for row in rows:
        table[row["channel"], row["position"]] = abs(row["value"])
    shades = colormaps["viridis"](np.linspace(0.0, 1.0, 128))
    cold = ListedColormap(shades).with_extremes(bad=COLOURS["pale"])
    masked = np.ma.masked_equal(table, 0.0)
    ends = np.log10([rows[0]["smallest"], rows[0]["largest"]])
    drawn = axes.imshow(
        np.ma.log10(masked), cmap=cold, vmin=ends[0], vmax=ends[1], aspect="auto",
        interpolation="nearest",
    )  # fmt: skip
    axes.figure.colorbar(drawn, ax=axes, label="log10 |gradient|", fraction=0.05)
    empty = float((table == 0).mean())
    clipped = float(np.mean([row["clipped"] for row in rows]))
    layer = short_layer(str(rows[0]["layer"]))
    place = f"position ({layer},\n{clipped:.0%} of the inputs clipped)"
    axes.set(xlabel=place, ylabel="channel")
    axes.set_title(f"{empty:.0%} exactly zero", fontsize=8.5, weight="normal", loc="right")
    axes.grid(visible=False)


_PATHS = {"without": ("vermilion", "--"), "with": ("blue", "-")}


def _both(axes: Axes, rows: Points, key: str) -> None:
    for series, mine in _grouped(rows, "series").items():
        colour, dashes = _PATHS[series]
        label = f"{series} SURGE, {mine[0]['zero']:.1%} zero"
        high, value = _columns(mine, "log10_high", key)
        look: dict[str, Any] = {"color": COLOURS[colour], "linestyle": dashes, "linewidth": 1.6}
        axes.plot(high, value, drawstyle="steps-pre", label=label, **look)


def distribution(axes: Axes, rows: Points) -> None:
    """Share of values per bin of log10|g|."""
    _both(axes, rows, "share")
    _finish(axes, x="log10 |gradient|", y="share of the values")


def cumulative(axes: Axes, rows: Points) -> None:
    """Share of values below a size, exact zeros included."""
    _both(axes, rows, "cumulative")
    axes.set_ylim(-0.02, 1.02)
    _finish(axes, x="log10 |gradient|", y="share of the values")


def weights(axes: Axes, rows: Points) -> None:
    """Density of one layer's weights, one line per arm, with the share near zero."""
    found = _grouped(rows, "arm")
    names = short_names(list(found))
    for arm, style in arm_styles(list(found)).items():
        weight, density = _columns(found[arm], "weight", "density")
        label = f"{names[arm]}: {found[arm][0]['near_zero']:.2%} near zero"
        axes.plot(weight, density, label=label, **style.line())
    axes.set_ylim(0.0, 1.35 * max(row["density"] for row in rows))  # room for the legend
    layer = short_layer(str(rows[0]["layer"]))
    _finish(axes, x=f"w / standard deviation, {layer}", y="density")


_OPTIMA = {
    "AGS": ("blue", "-"),
    "closed form": ("vermilion", "--"),
    "corrected": ("orange", ":"),
    "paired": ("green", "-."),
}


def optima(axes: Axes, rows: Points) -> None:
    """The scale in use and the measured optima of one layer, on a scale with room for signs."""
    for series, mine in _grouped(rows, "series").items():
        colour, dashes = _OPTIMA[series]
        _band(axes, mine, COLOURS[colour], linestyle=dashes, linewidth=1.6, label=series)
    sizes = [abs(row["mean"]) for row in rows if row["series"] == "AGS"]
    least = max(0.1 * min(sizes, default=1e-3), 1e-6)
    # A power of ten: no mark of the axis is nearer to zero, where there is no room for it.
    axes.set_yscale("symlog", linthresh=10.0 ** math.ceil(math.log10(least)))
    axes.axhline(0.0, color=COLOURS["grey"], linewidth=0.8, linestyle=":", zorder=0)
    _finish(axes, x="epoch", y="scale")
