"""The arms of a comparison: how each is drawn, and figures of panels that show all of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from surge.study import figures
from surge.study.figures import COLOURS, Row

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


@dataclass(frozen=True)
class ArmStyle:
    """How one arm of a comparison is drawn, the same in every figure."""

    colour: str
    """Line and marker colour."""
    dashes: str
    """matplotlib line style: arms without SURGE are dashed, so grey print still tells them."""
    width: float = 1.6
    """Line width in points."""

    def line(self) -> dict[str, Any]:
        """Return the keyword arguments for ``Axes.plot``."""
        return {"color": self.colour, "linestyle": self.dashes, "linewidth": self.width}


_ARMS: Mapping[str, ArmStyle] = {
    "fp": ArmStyle(COLOURS["grey"], "-", 1.3),
    "float": ArmStyle(COLOURS["grey"], "-", 1.3),
    "ste": ArmStyle(COLOURS["sky"], "--"),
    "ste+surge": ArmStyle(COLOURS["blue"], "-", 1.9),
    "ste+noise": ArmStyle(COLOURS["purple"], ":", 1.9),
    "bi-real": ArmStyle(COLOURS["orange"], "--"),
    "bi-real+surge": ArmStyle(COLOURS["vermilion"], "-", 1.9),
    "recu": ArmStyle(COLOURS["mint"], "--"),
    "recu+surge": ArmStyle(COLOURS["green"], "-", 1.9),
}


def arm_style(name: str) -> ArmStyle:
    """Return the style of an arm; unknown arms are ink, dashed unless they use SURGE.

    >>> arm_style("STE + SURGE") == arm_style("ste+surge")
    True
    """
    key = name.lower().replace(" ", "")
    unknown = ArmStyle(COLOURS["ink"], "-" if "surge" in key else "--")
    return _ARMS.get(key, unknown)


Painter = Callable[["Axes", Sequence[Row], str], None]
"""Draws the panel of a name from the rows of all panels."""


def draw_panels(
    rows: Sequence[Row], titles: Mapping[str, tuple[str, str]], paint: Painter
) -> Figure:
    """Return panels, by name with title and subtitle, in two columns with one legend below."""
    with figures.look():
        figure, places = figures.new_figure(-(-len(titles) // 2), 2, panel=(4.3, 3.1))
        for letter, axes, (name, words) in zip("abcdefgh", places, titles.items(), strict=False):
            paint(axes, rows, name)
            figures.panel_title(axes, f"{letter}  {words[0]}", words[1])
        arms = dict.fromkeys(str(row["arm"]) for row in rows)
        handles = [places[0].plot([], [], **arm_style(arm).line())[0] for arm in arms]
        figure.legend(handles, list(arms), loc="outside lower center", ncols=len(arms))
    return figure


def draw_panel_alone(rows: Sequence[Row], name: str, paint: Painter) -> Figure:
    """Return one panel as a figure of its own, without title or legend."""
    with figures.look():
        figure, (axes,) = figures.new_figure(panel=(4.4, 3.1))
        paint(axes, rows, name)
    return figure
