"""What is shown of runs that are trained side by side: a line for each, not one per epoch."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Protocol

from surge.cli.console import say

if TYPE_CHECKING:
    from rich.console import Console
    from rich.progress import Progress, TaskID

    from surge.study.queue import Job, Key

EVERY = 20.0
"""Seconds between two lines about the same run, where lines stay."""


def title(job: Job) -> str:
    """Name a run in a line: its row and its seed."""
    return f"{job.recipe.row} {job.seed}"


class RunLines(Protocol):
    """Shows where every active run is."""

    def begin(self, job: Job) -> None:
        """Show that a run begins."""

    def epoch(self, job: Job, done: int, words: str) -> None:
        """Show how many epochs of a run are done."""

    def end(self, job: Job) -> None:
        """Show it no more."""


class PlainLines:
    """Lines for a file or a pipe, every so many seconds."""

    def __init__(self, console: Console) -> None:
        """Print on a console."""
        self.console = console
        self._shown: dict[Key, float] = {}

    def begin(self, job: Job) -> None:
        """Say that a run begins; its first epoch is shown when it is over."""
        self._shown[job.key] = float("-inf")
        say(self.console, f"{title(job)}: begins")

    def epoch(self, job: Job, done: int, words: str) -> None:
        """Print a line unless the last one is fresh."""
        now = time.monotonic()
        if now - self._shown[job.key] >= EVERY:
            self._shown[job.key] = now
            line = f"{title(job)}: epoch {done}/{job.recipe.train.epochs} {words}"
            say(self.console, line)

    def end(self, job: Job) -> None:
        """Forget the run: what comes of it is printed by others."""
        del self._shown[job.key]


class LiveLines:
    """A bar for every active run, below what is printed meanwhile."""

    def __init__(self, bars: Progress) -> None:
        """Use rich's bars."""
        self.bars = bars
        self._tasks: dict[Key, TaskID] = {}

    def begin(self, job: Job) -> None:
        """Add a bar."""
        epochs = job.recipe.train.epochs
        self._tasks[job.key] = self.bars.add_task(title(job), total=epochs, words="is built")

    def epoch(self, job: Job, done: int, words: str) -> None:
        """Move the bar."""
        self.bars.update(self._tasks[job.key], completed=done, words=words)

    def end(self, job: Job) -> None:
        """Take the bar away."""
        self.bars.remove_task(self._tasks.pop(job.key))


@contextmanager
def run_lines(console: Console) -> Iterator[RunLines]:
    """Show active runs on this console: bars on a terminal, lines elsewhere."""
    if not console.is_terminal:
        yield PlainLines(console)
        return
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (
        TextColumn("{task.description}", markup=False),
        BarColumn(bar_width=28),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TextColumn("{task.fields[words]}", style="dim", markup=False),
    )
    with Progress(*columns, console=console) as bars:
        yield LiveLines(bars)
