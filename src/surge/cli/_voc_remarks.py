"""What stands below the table of detectors: operations, and with what it can be compared."""

from __future__ import annotations

from collections.abc import Sequence

from surge.errors import MissingDependencyError
from surge.recipes.recipe import Recipe
from surge.recipes.voc import paper_costs

NOTE = (
    "The split that ships here divides VOC2007's own test set: 3,467 images of 300 pixels to train "
    "on and 1,485 to test on. Its precisions are comparable with each other alone, not with the "
    "paper's, whose detectors learn from VOC2007 and VOC2012 and are tested on all of that set.\n"
)


def voc_remarks(recipes: Sequence[Recipe]) -> str:
    """Return what every whole row costs beside the paper's figures, and the note."""
    try:
        from surge.train.detection.cost import cost_of

        costs = {r.row: cost_of(r) for r in recipes if paper_costs(r.row) is not None}
    except MissingDependencyError as error:
        return f"{NOTE}\nCosts are not counted: {error}\n"
    lines = [
        "| row | OPs, 10^9 | in the paper | MB on disk | in the paper |",
        "| --- | ---: | ---: | ---: | ---: |",
    ]
    for row, cost in costs.items():
        ops, size = paper_costs(row) or (0.0, 0.0)
        lines.append(
            f"| {row} | {cost.ops / 1e9:.2f} | {ops:.2f} | {cost.bytes / 1e6:.2f} | {size:.2f} |"
        )
    return NOTE + "\n" + "\n".join(lines) + "\n"
