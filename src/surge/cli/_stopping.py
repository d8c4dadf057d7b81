"""What Ctrl-C and SIGTERM do to commands that train."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console


@contextmanager
def collected() -> Iterator[list[int]]:
    """Collect Ctrl-C and SIGTERM in a list instead of being ended by them."""
    caught: list[int] = []
    with _handled(caught.append, signal.SIGINT, signal.SIGTERM):
        yield caught


@contextmanager
def stoppable(console: Console) -> Iterator[Callable[[], bool]]:
    """Yield whether Ctrl-C asked to stop where a run can be continued; the second ends it at once.

    What is asked of a run is up to the caller, and so is how the command then ends.
    """
    caught: list[int] = []

    def heed(number: int) -> None:
        if caught:
            raise KeyboardInterrupt
        caught.append(number)
        console.print(
            "stopping: the epoch ends, or half a minute passes, and a checkpoint is written; "
            "once more ends it at once",
            soft_wrap=True,
        )

    with _handled(heed, signal.SIGINT):
        yield lambda: bool(caught)


@contextmanager
def _handled(handler: Callable[[int], None], *numbers: signal.Signals) -> Iterator[None]:
    """Handle some signals, where that can be done: in the main thread."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = [signal.signal(number, lambda number, _: handler(number)) for number in numbers]
    try:
        yield
    finally:
        for number, old in zip(numbers, before, strict=True):
            signal.signal(number, old)
