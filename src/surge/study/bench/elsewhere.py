"""Things that are built side by side, each in a process of its own, and then asked in turns.

Compiling a training step takes a minute of one core; timing it takes seconds, and the device must
be free then. So all are built at once, and nothing is asked before the last one is there.
"""

import multiprocessing
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any, Generic, Protocol, TypeVar

from surge.train.processes.child import Apart, Line

K = TypeVar("K")
T = TypeVar("T")
R = TypeVar("R")
S_co = TypeVar("S_co", covariant=True)


class Subject(Protocol[S_co]):
    """Something that functions can be applied to, wherever it is."""

    def ask(self, function: Callable[[S_co], R]) -> R:
        """Return ``function(subject)``."""


class Here(Generic[T]):
    """A subject of this process."""

    def __init__(self, build: Callable[[], T]) -> None:
        """Build it."""
        self.subject = build()

    def ask(self, function: Callable[[T], R]) -> R:
        """Apply a function."""
        return function(self.subject)


class FailedElsewhereError(RuntimeError):
    """What went wrong in another process, with its traceback."""


class Elsewhere(Apart, Generic[T]):
    """A subject of another process. Functions and answers must be picklable."""

    def __init__(self, build: Callable[[], T], gate: Any) -> None:
        """Begin to build; ``gate`` lets in as many builders as there should be at a time."""
        super().__init__(_serve, build, gate)

    def wait(self, until: float) -> None:
        """Wait until it is built, or until a time of the monotonic clock.

        Raises:
            FailedElsewhereError: it could not be built, or not in time.
        """
        if not self.pipe.poll(max(0.0, until - time.monotonic())):
            raise FailedElsewhereError("It was not built in time.")
        self._answer()

    def ask(self, function: Callable[[T], R]) -> R:
        """Apply a function over there and return its answer."""
        with suppress(ConnectionError):  # what became of it is heard instead of an answer
            self.pipe.send(function)
        answer: R = self._answer()
        return answer

    def _answer(self) -> Any:
        self.pipe.poll(None)
        said, ended = self.heard()
        if ended is not None:
            raise FailedElsewhereError(ended.trace or ended.error)
        return said[0]


def _serve(line: Line, build: Callable[[], Any], gate: Any) -> None:
    """Build, then answer until the other end is closed."""
    with gate:
        subject = build()
    line.say(None)
    while (function := line.hear()) is not None:
        line.say(function(subject))


@contextmanager
def built(
    builders: Mapping[K, Callable[[], T]],
    *,
    jobs: int,
    patience: float,
    on_failure: Callable[[K, str], None],
    on_built: Callable[[K], None] = lambda name: None,
) -> Iterator[dict[K, Subject[T]]]:
    """Build all, ``jobs`` at a time, each in a process of its own; with one job, here, in turn.

    What fails elsewhere, or takes longer than ``patience`` seconds, is reported with its name and
    traceback, and left out.
    """
    if jobs == 1:
        yield {name: Here(build) for name, build in builders.items()}
        return
    gate = multiprocessing.get_context("spawn").BoundedSemaphore(jobs)
    until = time.monotonic() + patience
    begun: dict[K, Elsewhere[T]] = {}
    ready: dict[K, Subject[T]] = {}
    try:
        for name, build in builders.items():
            begun[name] = Elsewhere(build, gate)
        for name, one in begun.items():
            try:
                one.wait(until)
            except FailedElsewhereError as error:
                one.leave()
                one.see_off()  # it must not work on beside what is measured
                on_failure(name, str(error))
            else:
                ready[name] = one
                on_built(name)
        yield ready
    finally:
        for one in begun.values():
            one.leave()
        for one in begun.values():
            one.see_off()
