"""Things that are built side by side, each in a process of its own, and then asked in turns.

Compiling a training step takes a minute of one core; timing it takes seconds, and the device must
be free then. So all are built at once, and nothing is asked before the last one is there.
"""

import multiprocessing
import time
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from multiprocessing.connection import Connection
from typing import Any, Generic, Protocol, TypeVar

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


class Elsewhere(Generic[T]):
    """A subject of another process. Functions and answers must be picklable."""

    def __init__(self, build: Callable[[], T], gate: Any) -> None:
        """Begin to build; ``gate`` lets in as many builders as there should be at a time."""
        context = multiprocessing.get_context("spawn")
        self._pipe, other = context.Pipe()
        self._process = context.Process(target=_serve, args=(other, build, gate), daemon=True)
        self._process.start()
        other.close()

    def wait(self, until: float) -> None:
        """Wait until it is built, or until a time of the monotonic clock.

        Raises:
            FailedElsewhereError: it could not be built, or not in time.
        """
        if not self._pipe.poll(max(0.0, until - time.monotonic())):
            raise FailedElsewhereError("It was not built in time.")
        self._receive()

    def ask(self, function: Callable[[T], R]) -> R:
        """Apply a function over there and return its answer."""
        self._pipe.send(function)
        answer: R = self._receive()
        return answer

    def end(self) -> None:
        """Stop the process, whatever it does."""
        self._pipe.close()
        self._process.terminate()
        self._process.join()

    def _receive(self) -> Any:
        try:
            fine, answer = self._pipe.recv()
        except EOFError:
            self._process.join()
            raise FailedElsewhereError(
                f"A process ended with exit code {self._process.exitcode}; memory may be short."
            ) from None
        if not fine:
            raise FailedElsewhereError(answer)
        return answer


def _serve(pipe: Connection, build: Callable[[], Any], gate: Any) -> None:
    """Build, then answer until the other end is closed."""
    try:
        with gate:
            subject = build()
        pipe.send((True, None))
        while True:
            function = pipe.recv()
            pipe.send((True, function(subject)))
    except (EOFError, BrokenPipeError):
        return
    except Exception:
        pipe.send((False, traceback.format_exc()))


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
    begun = {name: Elsewhere(build, gate) for name, build in builders.items()}
    try:
        ready: dict[K, Subject[T]] = {}
        for name, one in begun.items():
            try:
                one.wait(until)
            except FailedElsewhereError as error:
                one.end()  # it must not work on beside what is measured
                on_failure(name, str(error))
            else:
                ready[name] = one
                on_built(name)
        yield ready
    finally:
        for one in begun.values():
            one.end()
