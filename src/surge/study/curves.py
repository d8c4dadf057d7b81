"""The curves of a method, measured on the registered code: values forward, factors backward.

Inputs: ``binarize(z)`` on an even grid of z and the factor it multiplies the gradient with.
Weights: a rule may look at a whole filter (its mean, its spread), so one random filter is binarised
and every weight is a point; its factor is d w_b[i] / d w[i], the diagonal of the rule's Jacobian.
Methods with a schedule are measured at several epochs.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

import torch
from torch import Tensor, nn

from surge.layers import BinaryConv2d
from surge.layers.hooks import on_epoch
from surge.method import Method, get_method
from surge.study import figures
from surge.study.figures import COLOURS

if TYPE_CHECKING:
    from matplotlib.artist import Artist
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

EPOCHS = 100
"""Length of the training whose schedule is shown."""
SHOWN = (0, 50, 75, 99)
"""Epochs, from 0, at which a schedule is shown."""
REACH = 2.0
"""Inputs are shown from ``-REACH`` to ``REACH``."""
POINTS = 257
"""Steps of 1/64, which floats hold exactly: 0 and 1 are on the grid."""
CHANNELS, KERNEL = 32, (3, 3)
WEIGHT_MEAN, WEIGHT_STD = 0.1, 0.5
"""Off zero and wide enough that centring and clipping show."""

_PANELS = (("input", "binary"), ("input", "factor"), ("weight", "binary"), ("weight", "factor"))
_STYLES = (
    ("sky", "-", 5.6),
    ("blue", "--", 4.2),
    ("purple", "-.", 3.2),
    ("vermilion", "-", 2.2),
)
"""Colour, dashes of a line, size of a dot; later epochs lie smaller on top of earlier ones."""


@dataclass(frozen=True)
class Point:
    """One value before and after binarisation, with the factor its gradient gets."""

    rule: str
    """``input`` or ``weight``."""
    epoch: int
    value: float
    binary: float
    factor: float
    flat: bool = False
    """Whether the method says that its input surrogate is exactly zero here."""


@dataclass(frozen=True)
class Curves:
    """Everything measured of one method."""

    name: str
    epochs: tuple[int, ...]
    """Epochs measured; a single one where nothing depends on it."""
    points: tuple[Point, ...]

    def rows(self) -> list[dict[str, object]]:
        """Return the points as table rows."""
        return [{"method": self.name, **vars(point)} for point in self.points]

    def series(self, rule: str, key: str) -> dict[str, list[Point]]:
        """Return the points of a rule by the label of their epoch, once where all are alike."""
        held = [
            [point for point in self.points if point.rule == rule and point.epoch == epoch]
            for epoch in self.epochs
        ]
        if len({tuple(getattr(point, key) for point in points) for points in held}) == 1:
            return {"all epochs": held[0]}
        labels = (f"epoch {epoch} of {EPOCHS}" for epoch in self.epochs)
        return dict(zip(labels, held, strict=True))


def measure(name: str, *, seed: int = 0) -> Curves:
    """Evaluate a registered method, its gradient included, with its default options.

    >>> points = measure("bireal").points
    >>> half = next(p for p in points if p.rule == "input" and p.value == 0.5)
    >>> half.binary, half.factor
    (1.0, 1.0)
    """
    layer = _layer(name, seed)
    changes = any(
        getattr(type(layer.method), hook) is not getattr(Method, hook)
        for hook in ("on_epoch", "adapt")
    )
    epochs = SHOWN if changes else SHOWN[:1]
    points: list[Point] = []
    for epoch in epochs:
        on_epoch(layer, epoch, EPOCHS)
        points += _inputs(layer.method, epoch)
        points += _weights(layer.method, layer.weight.detach(), epoch)
    return Curves(name, epochs, tuple(points))


def _layer(name: str, seed: int) -> BinaryConv2d:
    """Return a convolution with one random filter; torch's own stream of numbers is left alone."""
    get_method(name)  # an unknown name is refused before anything is drawn
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        layer = BinaryConv2d(CHANNELS, 1, KERNEL, padding=1, bias=False)
        nn.init.normal_(layer.weight, WEIGHT_MEAN, WEIGHT_STD)
        layer.bind(name, {})
    return layer


def _inputs(method: Method, epoch: int) -> list[Point]:
    """Measure the input rule on one image whose pixels are the grid, in all channels alike."""
    grid = torch.linspace(-REACH, REACH, POINTS)
    z = grid.view(1, 1, -1, 1).repeat(1, CHANNELS, 1, 1).requires_grad_()
    binary = method.binarize(z)
    factor = _gradient(binary[0, 0].sum(), z)
    flat = method.surrogate_is_zero(z.detach())
    columns = (grid, *(found[0, 0].flatten() for found in (binary, factor, flat)))
    cells = zip(*(column.tolist() for column in columns), strict=True)
    return [Point("input", epoch, *cell) for cell in cells]


def _weights(method: Method, weight: Tensor, epoch: int) -> list[Point]:
    """Measure the weight rule, one backward per weight."""
    latent = weight.clone().requires_grad_()
    binary = method.binarize_weight(latent).flatten()
    factors = [float(_gradient(b, latent).flatten()[i]) for i, b in enumerate(binary)]
    columns = (weight.flatten().tolist(), binary.tolist(), factors)
    return sorted(
        (Point("weight", epoch, *cells) for cells in zip(*columns, strict=True)),
        key=lambda point: point.value,
    )


def _gradient(output: Tensor, of: Tensor) -> Tensor:
    (found,) = torch.autograd.grad(output, of, retain_graph=True)
    return found


def draw(curves: Curves) -> Figure:
    """Return four panels: forward and backward, of inputs and of weights."""
    with figures.look():
        figure, panels = figures.new_figure(2, 2, panel=(3.8, 2.5))
        heading = f"{curves.name}   ({get_method(curves.name).reference})"
        figure.suptitle(heading, x=0.01, ha="left", fontsize=12, weight="bold")
        legend: dict[str, Artist] = {}
        for axes, (rule, key) in zip(panels, _PANELS, strict=True):
            series = curves.series(rule, key)
            facts = _facts(series, rule, key)
            direction = "forward" if key == "binary" else "backward"
            figures.panel_title(axes, f"{rule.capitalize()}s: {direction}", facts)
            for style, (label, points) in zip(_styles(series), series.items(), strict=False):
                legend[label] = _plot(axes, points, key, style)
            if (rule, key) == ("input", "factor"):
                _shade(axes, list(series.values()))
            axes.set_xlabel("z, what enters sign" if rule == "input" else "w, the latent weight")
            axes.set_ylabel("value" if key == "binary" else "gradient factor")
            _leave_room(axes)
        if len(legend) > 1:
            labels = sorted(legend, key=lambda label: (label != "all epochs", len(label), label))
            handles = [legend[label] for label in labels]
            figure.legend(handles, labels, loc="outside lower center", ncols=len(labels))
    return figure


def _facts(series: dict[str, list[Point]], rule: str, key: str) -> str:
    if rule == "weight":
        count = CHANNELS * math.prod(KERNEL)
        drawn = f"one filter of {count} weights from N({WEIGHT_MEAN}, {WEIGHT_STD}²)"
        return drawn if key == "binary" else "each weight's own: d w_b[i] / d w[i]"
    if key == "binary":
        return "binarize(z)"
    flat = any(_flat_at_all_epochs(list(series.values())))
    return "grey: exactly zero, the gradient is lost" if flat else "nowhere exactly zero"


def _styles(series: dict[str, list[Point]]) -> Sequence[tuple[str, str, float]]:
    return _STYLES if len(series) > 1 else (("ink", "-", 3.0),)


def _plot(axes: Axes, points: Sequence[Point], key: str, style: tuple[str, str, float]) -> Artist:
    """Draw an input rule as a line, a weight rule as one dot per weight."""
    name, dashes, size = style
    look: dict[str, Any] = {"color": COLOURS[name], "linestyle": dashes, "linewidth": 1.7}
    if points[0].rule == "weight":
        look = {"color": COLOURS[name], "linestyle": "", "marker": "o", "markersize": size}
        look["markeredgewidth"] = 0
    across, up = [p.value for p in points], [getattr(p, key) for p in points]
    (line,) = axes.plot(across, up, **look)
    return cast("Artist", line)


def _leave_room(axes: Axes) -> None:
    """Show zero, and keep a constant from looking like noise."""
    low, high = axes.dataLim.y0, axes.dataLim.y1
    low, high = min(low, 0.0), max(high, 0.0)
    room = 0.08 * (high - low) or 1.0
    axes.set_ylim(low - room, high + room)


def _flat_at_all_epochs(series: Sequence[Sequence[Point]]) -> list[bool]:
    return [all(p.flat for p in alike) for alike in zip(*series, strict=True)]


def _shade(axes: Axes, series: Sequence[Sequence[Point]]) -> None:
    """Mark where the surrogate is exactly zero."""
    axes.fill_between(
        [p.value for p in series[0]],
        0,
        1,
        where=_flat_at_all_epochs(series),
        transform=axes.get_xaxis_transform(),
        color=COLOURS["pale"],
        alpha=0.5,
        linewidth=0,
        zorder=0,
    )
