"""What stands below the table of detectors: operations, and with what it can be compared."""

from __future__ import annotations

from collections.abc import Sequence

from surge.errors import MissingDependencyError
from surge.recipes.recipe import Recipe
from surge.recipes.voc import paper_ops

NOTE = (
    "The split that ships here divides VOC2007's own test set: 3,467 images of 300 pixels to train "
    "on and 1,485 to test on. Its precisions are comparable with each other alone, not with the "
    "paper's, whose detectors learn from VOC2007 and VOC2012 and are tested on all of that set.\n"
)


def voc_remarks(recipes: Sequence[Recipe]) -> str:
    """Return the operations of every whole row beside the paper's, and the note."""
    try:
        from surge.train.detect_cost import operations

        counts = {r.row: operations(r) for r in recipes if paper_ops(r.row) is not None}
    except MissingDependencyError as error:
        return f"{NOTE}\nOperations are not counted: {error}\n"
    lines = ["| row | OPs here, 10^9 | OPs in the paper, 10^9 |", "| --- | ---: | ---: |"]
    lines += [f"| {row} | {n / 1e9:.2f} | {paper_ops(row):.2f} |" for row, n in counts.items()]
    return NOTE + "\n" + "\n".join(lines) + "\n"
