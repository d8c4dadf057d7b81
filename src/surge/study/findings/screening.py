"""The variants of SURGE on held-out training images: against plain training and a free control.

The leaky tail adds a share of the gradient everywhere, also where the surrogate has none; it has no
auxiliary weights and costs nothing. A variant that does not beat it gains nothing by its weights.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING

from surge.recipes import get_recipe
from surge.recipes.variants import row_with
from surge.study import figures, results
from surge.study.figures import COLOURS
from surge.study.results import Result, select
from surge.study.statistics import Estimate, estimate
from surge.study.tables import difference_cell, make_rows, markdown, paired, spread_cell

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

TABLE, PLAIN, EPOCHS = "cifar10", "resnet20-recu", 60
HELD_OUT = "cifar10, held out"
PAIRS = 6
"""Seeds that every variant must have before one is chosen."""
CONTROL = "leaky"
VARIANTS = (
    *("", CONTROL, "above", "abovetied", "weight", "tied", "scaled", "signed", "bias", "share"),
    "noise",
)
"""What is compared: SURGE as the paper has it, the control, variants, noise of the same norm."""
NOT_CHOSEN = ("", "noise")
"""What is measured in any case, and what nobody would train with."""
SHOWN = 2.0
"""Points to either side that the picture reaches; what is beyond is written."""
PICTURE = Path("images/screening.png")
"""Beside the page that shows it."""


@dataclass(frozen=True)
class Candidate:
    """One variant, as far as it is measured."""

    variant: str
    last: Estimate | None
    delivered: float | None
    """Norm of the auxiliary gradient over that of the main one, at the input of the clamp that
    feeds a layer; mean over runs and epochs."""
    over_plain: Estimate | None
    over_control: Estimate | None

    @property
    def name(self) -> str:
        """The variant as tables show it."""
        return self.variant or "surge"


def candidates(folder: Path) -> list[Candidate]:
    """Return all variants with what is stored of them."""
    stored = select(results.read(folder, TABLE), epochs=EPOCHS, data=HELD_OUT, setting="")
    plain, control = select(stored, row=PLAIN), select(stored, row=row_with(PLAIN, CONTROL))
    return [_candidate(variant, stored, plain, control) for variant in VARIANTS]


def _candidate(
    variant: str, stored: Sequence[Result], plain: Sequence[Result], control: Sequence[Result]
) -> Candidate:
    mine = select(stored, row=row_with(PLAIN, variant))
    seeds = {r.seed: r for r in mine}.values()  # the newest run of a seed counts
    doses = [r.delivered for r in seeds if r.delivered is not None]
    return Candidate(
        variant=variant,
        last=estimate([r.last for r in seeds]) if seeds else None,
        delivered=fmean(doses) if doses else None,
        over_plain=paired(mine, plain),
        over_control=None if variant == CONTROL else paired(mine, control),
    )


def best(found: Sequence[Candidate]) -> Candidate | None:
    """Return the variant with the largest mean difference to plain training.

    None until all that can be chosen have their seeds. The control may be the best: then no
    auxiliary weight is worth its cost.
    """
    able = [c for c in found if c.variant not in NOT_CHOSEN]
    if any(_missing(c) for c in able):
        return None
    return max(able, key=lambda c: c.over_plain.mean if c.over_plain else 0.0)


def _missing(candidate: Candidate) -> int:
    """Return how many pairs a variant lacks."""
    return max(PAIRS - (candidate.over_plain.n if candidate.over_plain else 0), 0)


def section(folder: Path) -> str:
    """Return the table, which variant is ahead once all are measured, and the picture."""
    found = candidates(folder)
    head = (
        "variant",
        "held-out accuracy",
        "delivered, %",
        "minus plain, 95 %",
        "minus leaky, 95 %",
    )
    lines = [f"| {' | '.join(head)} |", f"| --- |{' ---: |' * (len(head) - 1)}"]
    for c in found:
        cells = (
            c.name,
            spread_cell(c.last),
            "open" if c.delivered is None else f"{100 * c.delivered:.2f}",
            difference_cell(c.over_plain),
            "-" if c.variant == CONTROL else difference_cell(c.over_control),
        )
        lines.append(f"| {' | '.join(cells)} |")
    ahead = best(found)
    missing = ", ".join(f"{c.name} {_missing(c)}" for c in found if _missing(c))
    if ahead is None:
        lines += ["", f"Nothing is chosen before all have {PAIRS} pairs; missing: {missing}."]
    else:
        still = f" Pairs still missing: {missing}." if missing else ""
        lines += ["", f"Largest mean difference to plain training: **{ahead.name}**.{still}"]
    if drawn(found):
        lines += ["", f"![Every variant minus plain training and minus the control]({PICTURE})"]
    return "\n".join(lines) + "\n"


def confirmed(folder: Path) -> str:
    """Return what the chosen variant does on the test set, beside the paper's own form."""
    ahead = best(candidates(folder))
    if ahead is None:
        return "Nothing is chosen yet.\n"
    rows = (PLAIN, row_with(PLAIN, ""), row_with(PLAIN, ahead.variant))
    recipes = [get_recipe(f"{TABLE}-{row}") for row in rows]
    return markdown(make_rows(recipes, select(results.read(folder, TABLE), setting="")))


def drawn(found: Sequence[Candidate]) -> bool:
    """Return whether there is anything to draw: two variants with an interval."""
    return sum(c.over_plain is not None and c.over_plain.n > 1 for c in found) > 1


def draw(found: Sequence[Candidate]) -> Figure:
    """Return differences to plain training on the left, to the control on the right."""
    order = [c for c in reversed(found) if c.over_plain is not None]
    with figures.look():
        figure, (left, right) = figures.new_figure(1, 2, panel=(4.2, 1.0 + 0.26 * len(order)))
        _differences(left, order, [c.over_plain for c in order])
        figures.panel_title(left, "Minus plain training", "95 % intervals, paired by seed")
        _differences(right, order, [c.over_control for c in order])
        figures.panel_title(right, "Minus the free control", "the leaky tail")
    return figure


def _differences(axes: Axes, order: Sequence[Candidate], values: Sequence[Estimate | None]) -> None:
    for place, value in enumerate(values):
        if value is None:
            continue
        figures.dot_and_interval(axes, place, value, COLOURS["green"])
        low, high = value.interval if value.n > 1 else (value.mean, value.mean)
        if low < -SHOWN or high > SHOWN:
            words = f"{value.mean:+.1f} [{low:+.1f}, {high:+.1f}]"
            axes.text(SHOWN, place + 0.15, words, ha="right", fontsize="small")
    axes.axvline(0, color=COLOURS["grey"], linewidth=1)
    axes.set_yticks(range(len(order)), [c.name for c in order])
    axes.set_ylim(-0.7, len(order) - 0.3)
    axes.set_xlim(-SHOWN, SHOWN)
    axes.set_xlabel("points of held-out accuracy")


def numbers(found: Sequence[Candidate]) -> list[dict[str, object]]:
    """Return what the picture is drawn from."""
    rows: list[dict[str, object]] = []
    for c in found:
        row: dict[str, object] = {"variant": c.name, "delivered": c.delivered or ""}
        for name, value in (("plain", c.over_plain), ("control", c.over_control)):
            row |= {
                f"pairs_{name}": value.n if value else 0,
                f"minus_{name}": value.mean if value else "",
                f"half_width_{name}": value.half_width if value and value.n > 1 else "",
            }
        rows.append(row)
    return rows


def renew(folder: Path, docs: Path) -> list[Path]:
    """Draw the published picture; while there is nothing to draw, there is none."""
    found, picture = candidates(folder), docs / PICTURE
    if not drawn(found):
        figures.remove(picture)
        return []
    return figures.save(draw(found), numbers(found), picture)
