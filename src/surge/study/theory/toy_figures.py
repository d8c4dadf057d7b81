"""The paper's toy figures: trajectories, loss, distance and scale; norms and both alphas.

Trajectories show one seed, the one whose difference between STE+SURGE and STE is the median.
Curves show the median over all seeds, their bands the middle half; a point stands for the mean of
the steps since the point before. Every panel is drawn from rows alone, so that the CSV beside a
picture holds all of it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from surge.files import atomic
from surge.study import figures
from surge.study.arms import arm_style, draw_panels
from surge.study.figures import COLOURS, Row
from surge.study.theory.toy import OPTIMUM, Array, Log, beale
from surge.study.theory.toy_claims import FLOOR, Claim, representative

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Logs = Mapping[str, Log]

CONVERGENCE = ("trajectory", "loss", "distance", "scale")
PARAMETERS = ("norm_main", "norm_auxiliary", "alpha_w", "alpha_a")
FIVE = ("FP", "STE", "STE+SURGE", "Bi-Real", "Bi-Real+SURGE")
THREE = ("FP", "STE", "STE+SURGE")
NOISE = ("FP", "STE", "STE+Noise", "STE+SURGE")

PICTURES: Mapping[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "toy-five-convergence": (FIVE, CONVERGENCE),
    "toy-five-parameters": (FIVE, PARAMETERS),
    "toy-three-convergence": (THREE, CONVERGENCE),
    "toy-three-parameters": (THREE, PARAMETERS),
    "toy-noise-convergence": (NOISE, CONVERGENCE),
}
"""The paper's figures by file name: which arms, which panels."""

_POINTS = 140
"""Points per curve, evenly spaced on the logarithmic axis of steps."""
_WAY = 150
"""Steps of a trajectory that are drawn boldly."""
_LOWEST = 1e-4
"""Where the logarithmic axes end; full precision leaves the frame."""


@dataclass(frozen=True)
class Panel:
    """One panel: what it shows and how its axis is."""

    title: str
    axis: str
    logarithmic: bool = False


PANELS: Mapping[str, Panel] = {
    "trajectory": Panel("Way over Beale's function", "y"),
    "loss": Panel("Loss", "Beale(x, y)", logarithmic=True),
    "distance": Panel("Distance to the optimum", "distance to (3, 0.5)", logarithmic=True),
    "scale": Panel("Scale, hidden layer", "scale"),
    "norm_main": Panel("Norm of W, hidden layer", "Frobenius norm"),
    "norm_auxiliary": Panel("Norm of the auxiliary W, hidden layer", "Frobenius norm"),
    "alpha_w": Panel("alpha_w, hidden layer", "alpha_w"),
    "alpha_a": Panel("alpha_a, hidden layer", "alpha_a"),
}


def make_rows(logs: Logs, arms: Sequence[str], panels: Sequence[str]) -> list[Row]:
    """Return everything the panels show of these arms."""
    seed = representative(logs)
    rows: list[Row] = []
    for panel in panels:
        for arm in arms:
            log = logs[arm]
            if panel == "trajectory":
                path = zip(log.x[:, seed].tolist(), log.y[:, seed].tolist(), strict=True)
                rows += [_row(panel, arm, n, x=x, y=y) for n, (x, y) in enumerate(path, start=1)]
            else:
                rows += _curve(panel, arm, getattr(log, panel))
    return rows


def _row(panel: str, arm: str, step: int, **values: float) -> Row:
    return {"panel": panel, "arm": arm, "step": step, **values}


def _curve(panel: str, arm: str, series: Array) -> list[Row]:
    """Median and quartiles over the seeds, of the hidden layer where there are two."""
    series = series[:, :, 0] if series.ndim == 3 else series
    if np.isnan(series).any():  # this arm has no such thing
        return []
    logarithmic = PANELS[panel].logarithmic
    values = np.log10(np.maximum(series, FLOOR)) if logarithmic else series
    ends = np.unique(np.geomspace(1, len(values), _POINTS).round().astype(int))
    sums = np.add.reduceat(values, np.concatenate([[0], ends[:-1]]), axis=0)
    means = sums / np.diff(ends, prepend=0)[:, None]
    quartiles = np.quantile(means, (0.25, 0.5, 0.75), axis=1).T
    quartiles = 10.0**quartiles if logarithmic else quartiles
    return [
        _row(panel, arm, n, low=low, median=median, high=high)
        for n, (low, median, high) in zip(ends.tolist(), quartiles.tolist(), strict=True)
    ]


def draw(rows: Sequence[Row], panels: Sequence[str]) -> Figure:
    """Return the panels as one figure."""
    titles = {name: (PANELS[name].title, subtitle(name)) for name in panels}
    return draw_panels(rows, titles, draw_panel)


def draw_panel(axes: Axes, rows: Sequence[Row], name: str) -> None:
    """Draw one panel from its rows."""
    mine = [row for row in rows if row["panel"] == name]
    if name == "trajectory":
        _draw_trajectories(axes, mine)
        return
    panel = PANELS[name]
    if panel.logarithmic:
        axes.set_yscale("log")
    for arm in dict.fromkeys(str(row["arm"]) for row in mine):
        chosen: list[Mapping[str, Any]] = [row for row in mine if row["arm"] == arm]
        steps = [row["step"] for row in chosen]
        band = ([row["low"] for row in chosen], [row["high"] for row in chosen])
        style = arm_style(arm)
        axes.fill_between(steps, *band, color=style.colour, alpha=0.13, linewidth=0)
        axes.plot(steps, [row["median"] for row in chosen], **style.line())
    if name in ("loss", "distance"):
        axes.set_ylim(bottom=_LOWEST if name == "loss" else 10 * _LOWEST)
    axes.set_xscale("log")
    axes.minorticks_off()
    axes.margins(x=0.01)
    axes.set(xlabel="step", ylabel=panel.axis)
    axes.xaxis.set_major_formatter(lambda value, _: f"{value:,.0f}")


def _draw_trajectories(axes: Axes, rows: Sequence[Mapping[str, Any]]) -> None:
    places = {key: np.array([row[key] for row in rows]) for key in "xy"}
    across = _window(places["x"], least=(-0.3, 3.6), most=(-1.5, 5.5))
    up = _window(places["y"], least=(-0.5, 0.9), most=(-1.5, 1.6))
    _draw_contours(axes, across, up)
    for arm in dict.fromkeys(str(row["arm"]) for row in rows):
        path = np.array([(row["x"], row["y"]) for row in rows if row["arm"] == arm])
        style = arm_style(arm)
        # What happens around the minimum is a cloud: the way there stays in front of it.
        axes.plot(*path[_WAY:].T, color=style.colour, linewidth=0.6, alpha=0.3)
        axes.plot(*path[: _WAY + 1].T, **{**style.line(), "linewidth": 0.85 * style.width})
        axes.plot(*path[0], "o", color=style.colour, markersize=4.0)
        axes.plot(*path[-1], "s", color=style.colour, markersize=4.5, zorder=4)
    axes.plot(*OPTIMUM, "*", color=COLOURS["ink"], markersize=12, zorder=5)
    axes.set(xlim=across, ylim=up, xlabel="x", ylabel="y")
    axes.grid(False)


def _window(
    values: Array, *, least: tuple[float, float], most: tuple[float, float]
) -> tuple[float, float]:
    """Return an axis that holds the values, within bounds that keep the picture readable."""
    low, high = np.clip([values.min() - 0.15, values.max() + 0.15], *most)
    return float(min(low, least[0])), float(max(high, least[1]))


def _draw_contours(axes: Axes, across: tuple[float, float], up: tuple[float, float]) -> None:
    from matplotlib.colors import to_rgba

    x, y = torch.linspace(*across, 160), torch.linspace(*up, 160)
    points = torch.stack(torch.meshgrid(x, y, indexing="xy"), dim=-1)
    grid = (x.numpy(), y.numpy(), beale(points).clamp(min=1e-9).log10().numpy())
    levels = np.arange(-2.0, 3.1, 0.5)
    shades = [to_rgba(COLOURS["ink"], 0.013 * number) for number in range(len(levels) + 1)]
    axes.contourf(*grid, levels=levels, colors=shades, extend="both")
    ring = to_rgba(COLOURS["ink"], 0.16)
    axes.contour(*grid, levels=levels, colors=[ring], linewidths=0.6, linestyles="-")


def subtitle(name: str) -> str:
    """Return the quiet line under a panel's title."""
    if name == "trajectory":
        return "the median seed; dot: start, square: end, star: optimum"
    return "median over the seeds, band: middle half"


def write_study(logs: Logs, claims: Sequence[Claim], folder: Path) -> list[Path]:
    """Write every picture with its numbers, the answers as CSV and JSON, and all steps as arrays.

    ``log.npz`` holds ``<arm>/<quantity>`` as [steps, seeds] or [steps, seeds, layer].
    """
    written: list[Path] = []
    for name, (arms, panels) in PICTURES.items():
        rows = make_rows(logs, arms, panels)
        written += figures.save(draw(rows, panels), rows, folder / f"{name}.png")
    table = [asdict(claim) for claim in claims]
    written.append(figures.write_csv(table, folder / "claims.csv"))
    written.append(figures.write_json(table, folder / "claims.json"))
    arrays = {
        f"{arm}/{key}": value.astype(np.float32)
        for arm, log in logs.items()
        for key, value in vars(log).items()
        if not np.isnan(value).all()
    }
    with atomic(folder / "log.npz") as file:
        np.savez_compressed(file, **arrays)
    return [*written, folder / "log.npz"]
