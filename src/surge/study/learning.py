"""Learning curves of several runs, seeds gathered by arm: accuracy, loss and flipped bits.

A curve is the mean over the seeds of an arm, its band reaches from the lowest seed to the highest.
Panels are drawn from rows alone, so that the CSV beside a picture holds all of it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from surge.study import figures
from surge.study.arms import arm_style, draw_panels
from surge.study.figures import COLOURS, Row

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


@dataclass(frozen=True)
class Run:
    """One finished run: its arm, its seed and its lines of ``metrics.jsonl``."""

    arm: str
    seed: int
    epochs: Sequence[Mapping[str, Any]]


@dataclass(frozen=True)
class Panel:
    """One panel: what it shows, from which column, on which axis."""

    title: str
    key: str
    axis: str
    logarithmic: bool = False


PANELS: Mapping[str, Panel] = {
    "final": Panel("Accuracy after the last epoch", "test_top1", "test accuracy, %"),
    "accuracy": Panel("Test accuracy", "test_top1", "test accuracy, %"),
    "loss": Panel("Training loss", "train_loss", "cross-entropy", logarithmic=True),
    "flips": Panel("Weight bits that flip", "flips", "% of the bits per epoch", logarithmic=True),
}
NOTES = {
    "final": "a dot per seed, a line at their mean",
    "flips": "the float network has no bits",
}
BAND = "mean over the seeds, band: lowest to highest"


def make_rows(runs: Sequence[Run], panels: Sequence[str] = tuple(PANELS)) -> list[Row]:
    """Return everything the panels show."""
    rows: list[Row] = []
    for panel in panels:
        key = PANELS[panel].key
        for arm in dict.fromkeys(run.arm for run in runs):
            mine = [run for run in runs if run.arm == arm]
            place = {"panel": panel, "arm": arm}
            if panel == "final":
                rows += [
                    {**place, "seed": run.seed, "mean": run.epochs[-1][key]}
                    for run in mine
                    if run.epochs
                ]
            elif panel != "flips" or any(row[key] for run in mine for row in run.epochs):
                rows += [{**place, **point} for point in _curve(mine, key)]
    return rows


def _curve(runs: Sequence[Run], key: str) -> list[dict[str, float]]:
    """Mean and range over the seeds, for every epoch that all of them have."""
    points = []
    for epoch in range(min(len(run.epochs) for run in runs)):
        values = [float(run.epochs[epoch][key]) for run in runs]
        mean = sum(values) / len(values)
        points.append({"epoch": epoch + 1, "low": min(values), "mean": mean, "high": max(values)})
    return points


def draw(rows: Sequence[Row], panels: Sequence[str] = tuple(PANELS)) -> Figure:
    """Return the panels as one figure."""
    titles = {name: (PANELS[name].title, NOTES.get(name, BAND)) for name in panels}
    return draw_panels(rows, titles, draw_panel)


def draw_panel(axes: Axes, rows: Sequence[Row], name: str) -> None:
    """Draw one panel from its rows."""
    mine: list[Mapping[str, Any]] = [row for row in rows if row["panel"] == name]
    arms = list(dict.fromkeys(str(row["arm"]) for row in mine))
    by_arm = {arm: [row for row in mine if row["arm"] == arm] for arm in arms}
    axes.set_ylabel(PANELS[name].axis)
    if name == "final":
        _draw_final(axes, by_arm)
        return
    for arm, points in by_arm.items():
        style = arm_style(arm)
        epochs = [row["epoch"] for row in points]
        band = ([row["low"] for row in points], [row["high"] for row in points])
        axes.fill_between(epochs, *band, color=style.colour, alpha=0.13, linewidth=0)
        axes.plot(epochs, [row["mean"] for row in points], **style.line())
    if PANELS[name].logarithmic:
        figures.logarithmic(axes)
    elif by_arm:
        # The first epochs would press everything else against the upper edge.
        axes.set_ylim(bottom=_floor([row["low"] for row in mine]))
    axes.set_xlabel("epoch")
    figures.whole_epochs(axes)
    axes.margins(x=0.02)


def _floor(values: Sequence[float]) -> float:
    """Return where an axis begins so that three quarters of the values have room."""
    return sorted(values)[len(values) // 4] - 4.0


def _draw_final(axes: Axes, by_arm: Mapping[str, Sequence[Mapping[str, Any]]]) -> None:
    for place, (arm, points) in enumerate(by_arm.items()):
        values = [row["mean"] for row in points]
        # Equal accuracies are common on a small test set: side by side they stay visible.
        spots = [place + 0.12 * (number - (len(values) - 1) / 2) for number in range(len(values))]
        colour = arm_style(arm).colour
        mean = sum(values) / len(values)
        axes.plot([place - 0.28, place + 0.28], [mean, mean], color=colour, linewidth=2.2)
        axes.plot(
            spots, values, "o", color=colour, markersize=5.5, markeredgecolor=COLOURS["ink"],
            markeredgewidth=0.5, linestyle="none",
        )  # fmt: skip
    axes.set_xticks(range(len(by_arm)), [arm.replace("+", "\n+") for arm in by_arm])
    axes.grid(visible=False, axis="x")
    axes.margins(x=0.06, y=0.12)
