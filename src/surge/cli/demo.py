"""``surge demo``: the toy problem, real digits, and one page about both."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console


@dataclass(frozen=True)
class DemoCommand:
    """See it all in two minutes: the toy problem, a binary CNN on real digits, a report page.

    Trains on data that comes with scikit-learn: a float network, then STE and ReCU, each with and
    without SURGE, three seeds. Then one of them is packed, run by the engine and timed beside the
    float network. The result is one HTML file that loads nothing from elsewhere; its
    path is printed.

    Example:
        surge demo
        surge demo --out /tmp/look --quick   # a few seconds, to see that it works
    """

    out: Path = Path("runs/demo")
    """Folder for everything; files of an earlier demo are replaced, others never."""
    workers: int | None = None
    """Runs trained at the same time; one per core by default, at most four."""
    quick: bool = False
    """One seed, two epochs, few steps: shows the page, proves nothing."""

    def run(self, console: Console) -> None:
        """Do it all and print where the page is."""
        from surge.cli._demonstrating import demonstrate

        demonstrate(self, console)


COMMAND = ("demo", DemoCommand)
