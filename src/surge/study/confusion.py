"""The confusion matrix as a picture: every row is a true class, shaded by its shares."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from torch import Tensor

from surge.study import figures
from surge.study.figures import COLOURS

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def draw(classes: Sequence[str], confusion: Tensor, *, title: str, facts: str = "") -> Figure:
    """Return the picture of counts ``[true, predicted]``; the numbers are written in the cells."""
    shares = confusion.double() / confusion.sum(dim=1, keepdim=True).clamp(min=1)
    with figures.look():
        from matplotlib.colors import LinearSegmentedColormap

        side = 1.9 + 0.42 * len(classes)
        figure, (axes,) = figures.new_figure(panel=(side + 0.5, side))
        shading = LinearSegmentedColormap.from_list("share", ["#ffffff", COLOURS["blue"]])
        axes.imshow(shares.numpy(), cmap=shading, vmin=0.0, vmax=1.0, aspect="auto")
        axes.grid(visible=False)
        for true, counts in enumerate(confusion.tolist()):
            for predicted, value in enumerate(counts):
                if value:
                    light = bool(shares[true, predicted] > 0.5)
                    ink = "#ffffff" if light else COLOURS["ink"]
                    axes.text(
                        predicted, true, str(value), ha="center", va="center", color=ink, size=7.5
                    )
        axes.set_xticks(range(len(classes)), classes, rotation=45, ha="right")
        axes.set_yticks(range(len(classes)), classes)
        axes.set(xlabel="predicted", ylabel="true")
        figures.panel_title(axes, title, facts)
    return figure
