"""``surge report``: one page about any number of runs."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import tyro

if TYPE_CHECKING:
    from rich.console import Console


@dataclass(frozen=True)
class ReportCommand:
    """Write one HTML page about some runs: curves, comparison, layers, figures, how to repeat it.

    The page is one file that loads nothing. Runs trained with --record also have figures of
    gradients, scales and weights. With --figures every figure is written as PNG and CSV too.

    Example:
        surge report runs/digits-cnn-recu-seed0 runs/digits-cnn-recu-surge-seed0
        surge report runs/*recu* --out recu.html --figures figures
        surge report runs
    """

    runs: Annotated[tuple[Path, ...], tyro.conf.Positional, tyro.conf.arg(metavar="[RUN...]")] = ()
    """Folders of runs, finished or not, or a folder that holds some."""
    out: Path = Path("report.html")
    """The page."""
    figures: Path | None = None
    """Folder for the figures with their numbers."""
    results: Path = Path("results")
    """Stored results, for the eta and fixed-scale curves."""
    keep: Path | None = None
    """Also copy the runs here, without checkpoints: what a figure is made from."""

    def run(self, console: Console) -> None:
        """Read, draw, write, and name the files."""
        from surge.cli._reporting import report

        report(self, console)


COMMAND = ("report", ReportCommand)
