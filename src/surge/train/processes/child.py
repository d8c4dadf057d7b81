"""Work in a process of its own: what it says on its way, how it ended, and how to end it.

Compiling a training step takes a minute of one core, in which a GPU waits: runs that share nothing
but a machine are best kept in processes.
"""

import faulthandler
import multiprocessing
import os
import signal
import sys
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from multiprocessing import resource_tracker
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

LEAVING = 60.0
"""Seconds that a process may take to leave after its last word: many that share a GPU take long,
and under NVIDIA's MPS the end of one that is killed is the end of all."""
WORDS = 3
"""How many lines of what a process printed last are quoted."""


@dataclass(frozen=True)
class Ended:
    """How a process ended: with an answer, with an error, or with nothing but an exit code."""

    answer: Any = None
    error: str | None = None
    """What went wrong, in a line or a few; None where nothing did."""
    kind: str = ""
    """The name of the class of an error that was raised there."""
    trace: str = ""
    """Where that was."""


class Line:
    """A process's end of the line to the one that began it."""

    def __init__(self, pipe: Connection) -> None:
        """Talk through a pipe."""
        self._pipe, self._stopped = pipe, False

    def say(self, words: object) -> None:
        """Tell something that can be pickled; with nobody left to hear it, work should stop.

        From the first time on, SIGTERM is a request: what was done so far is worth keeping.
        """
        signal.signal(signal.SIGTERM, self._stop)
        try:
            self._pipe.send(words)
        except ConnectionError:
            self._stopped = True

    def hear(self) -> Any:
        """Wait for what the other end says, and return it; None with nobody left there."""
        try:
            return self._pipe.recv()
        except (EOFError, ConnectionError):
            return None

    def stopped(self) -> bool:
        """Return whether work should stop where it can be continued."""
        return self._stopped

    def _stop(self, *_: object) -> None:
        self._stopped = True


class Apart:
    """A function in a process of its own; it and its arguments must be picklable."""

    def __init__(self, function: Callable[..., Any], *args: Any, log: Path | None = None) -> None:
        """Begin ``function(line, *args)``; everything it prints is added to a file, if any."""
        context = multiprocessing.get_context("spawn")
        self._log = log
        self.pipe, other = context.Pipe()
        self._process = context.Process(target=_enter, args=(other, log, function, args))
        with _unreached_by_keys():
            self._process.start()
        other.close()

    @property
    def alive(self) -> bool:
        """Whether the process is still there."""
        return self._process.is_alive()

    def heard(self) -> tuple[list[Any], Ended | None]:
        """Return what was said since the last time, and how it ended, if it did."""
        words: list[Any] = []
        alive = self.alive  # if not, all it ever said is in the pipe by now
        with suppress(EOFError, OSError):  # a message that a kill cut short
            while self.pipe.poll():
                said = self.pipe.recv()
                if isinstance(said, Ended):
                    self.see_off()  # all it did is on disk, whatever keeps it
                    return words, said
                words.append(said)
            if alive:
                return words, None
        self._process.join()
        return words, Ended(error=self._last_words())

    def ask_to_stop(self) -> None:
        """Ask it to stop where it can be continued; before it said anything it just ends."""
        self._process.terminate()

    def kill(self) -> None:
        """End it at once, whatever it does."""
        self._process.kill()

    def leave(self) -> None:
        """Ask it to stop, and listen no more."""
        self.ask_to_stop()
        self.pipe.close()

    def see_off(self) -> None:
        """Give it time to leave by itself; end it only if it does not."""
        self._process.join(LEAVING)
        self.kill()

    def _last_words(self) -> str:
        code = self._process.exitcode or 0
        how = f"exit code {code}"
        if code < 0:
            how = signal.Signals(-code).name
        if code == -signal.SIGKILL:
            how += "; memory may be short"
        if self._log is None:
            return f"its process died ({how})."
        text = self._log.read_text(errors="replace") if self._log.exists() else ""
        last = [line.strip() for line in text.splitlines() if line.strip()][-WORDS:]
        return f"its process died ({how}). Last words in {self._log}: {' / '.join(last) or 'none'}"


@contextmanager
def _unreached_by_keys() -> Iterator[None]:
    """Begin processes that Ctrl-C does not reach: whoever began them decides what becomes of them.

    What is blocked here stays blocked there, and a key pressed meanwhile counts afterwards.
    """
    if not hasattr(signal, "pthread_sigmask"):
        yield
        return
    resource_tracker.ensure_running()  # the first process would begin it, and that unblocks keys
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _enter(
    pipe: Connection, log: Path | None, function: Callable[..., Any], args: tuple[Any, ...]
) -> None:
    """Do the work of a process."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    if log is not None:
        _print_into(log)
    try:
        ended = Ended(function(Line(pipe), *args))
    except Exception as error:
        kind, trace = type(error).__name__, traceback.format_exc()
        if log is not None:
            sys.stderr.write(trace)
        ended = Ended(error=str(error) or kind, kind=kind, trace=trace)
    with suppress(ConnectionError):
        pipe.send(ended)


def _print_into(log: Path) -> None:
    """Let everything that this process and its libraries print go to a file."""
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("ab") as file:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(line_buffering=True)
    faulthandler.enable()
