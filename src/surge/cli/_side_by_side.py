"""The runs of a table side by side, each in a process of its own: ``surge reproduce --jobs``."""

from __future__ import annotations

import math
import os
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from multiprocessing.connection import wait
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from surge.cli._job_folders import open_folder
from surge.cli._progress import conclude
from surge.cli._run_lines import RunLines, run_lines, title
from surge.cli._stopping import collected
from surge.cli._training import choose_device, prepare_in
from surge.cli.console import say
from surge.data import resolve_root
from surge.data.pictures import worker_count
from surge.errors import CheckpointMismatchError, DataNotFoundError
from surge.study.queue import Job, Key, fits, next_ready
from surge.study.results import Result
from surge.train.build import load_sets
from surge.train.options import LoopOptions, Outcome
from surge.train.processes.child import Apart, Ended, Line
from surge.train.run import RunFolder, hardware

if TYPE_CHECKING:
    from rich.console import Console

    from surge.cli.reproduce import ReproduceCommand

TURN = 0.2
"""Seconds after which signals and the clock are looked at again."""
THREADS = ("OMP_NUM_THREADS", "TORCHINDUCTOR_COMPILE_THREADS")
"""What decides how many threads a process computes and compiles with."""
MPS = (
    "Processes take turns on a GPU unless NVIDIA's MPS runs: `nvidia-cuda-mps-control -d` starts "
    "it, and lets them share the GPU better."
)


@contextmanager
def share_of_cores(jobs: int) -> Iterator[None]:
    """Give each of so many processes its part of the cores, where the user did not choose.

    This process takes the same number: a result names it with the processor.
    """
    known = hasattr(os, "sched_getaffinity")
    cores = len(os.sched_getaffinity(0)) if known else os.cpu_count() or 1
    share = max(1, cores // jobs)
    chosen = [name for name in THREADS if name not in os.environ]
    before = torch.get_num_threads()
    os.environ.update(dict.fromkeys(chosen, str(share)))
    if "OMP_NUM_THREADS" in chosen:
        torch.set_num_threads(share)
    try:
        yield
    finally:
        torch.set_num_threads(before)
        for name in chosen:
            del os.environ[name]


def mps_runs(processes: Path = Path("/proc")) -> bool:
    """Return whether NVIDIA's multi-process service is seen, by its process or by its pipe."""
    if Path(os.environ.get("CUDA_MPS_PIPE_DIRECTORY", "/tmp/nvidia-mps"), "control").exists():
        return True
    for file in processes.glob("[0-9]*/comm"):
        try:
            if file.read_text().startswith("nvidia-cuda-mps"):
                return True
        except OSError:  # it ended meanwhile
            continue
    return False


def workers_of(command: ReproduceCommand, runs: int) -> int | None:
    """Return how many workers decode for each of so many runs side by side."""
    return command.workers or (worker_count(runs) if runs > 1 else None)


def train_apart(
    line: Line, job: Job, command: ReproduceCommand, deadline: float | None, side_by_side: int
) -> tuple[Outcome, dict[str, Any]]:
    """Do one job, in a process that does nothing else; return how it ended, and where.

    All that is printed of a run alone is in its ``log.txt``; the line hears of every epoch.
    """
    from rich.console import Console

    device = choose_device(command.device)
    workers = workers_of(command, side_by_side)
    sets = load_sets(job.recipe.data, resolve_root(command.data, os.environ), workers)
    folder, environment = open_folder(job, command, device, side_by_side)
    options = LoopOptions(
        deadline=deadline,
        stop=line.stopped,
        compiled=command.compiled,
        captured=command.captured,
        workers=workers,
    )
    metric = job.recipe.metric

    def tell(row: dict[str, Any]) -> None:
        tested = row.get(f"test_{metric}")
        news = f"loss {row['train_loss']:.3f}" if tested is None else f"{metric} {tested:.2f}"
        line.say((row["epoch"] + 1, news))

    quiet = Console(quiet=True)
    prepare = partial(prepare_in, folder, job.recipe, sets, environment, device)
    return prepare(options, quiet, sink=tell)(), environment


@dataclass
class Crew:
    """Trains jobs, some at a time; as soon as one ends the next begins.

    Only this process adds to the results. A run that fails does not stop the others.
    """

    waiting: list[Job]
    size: int
    train: Callable[..., Any]
    """What a process does with a job, and with ``args``: see :func:`train_apart`."""
    args: tuple[Any, ...]
    complete: Callable[[Job], Job]
    """Names the runs that a job builds on; raises where they are not there."""
    stored: list[Result]
    where: Path
    console: Console
    device: torch.device
    deadline: float | None = None
    failed: int = 0
    active: dict[Key, tuple[Job, Apart]] = field(default_factory=dict)
    _lost: set[Key] = field(default_factory=set)
    _begun: dict[Key, float] = field(default_factory=dict)
    _soonest: float = math.inf
    """Seconds from the beginning of a run to the end of its first epoch here, at least."""
    _stopping: bool = False

    def work(self) -> int:
        """Train all that fits the time; return how many runs failed."""
        with share_of_cores(self.size), collected() as caught, run_lines(self.console) as lines:
            kind = hardware(self.device)
            try:
                while self._begin(kind, lines) or self.active:
                    wait([apart.pipe for _, apart in self.active.values()], TURN)
                    self._heed(caught)
                    for job, apart in list(self.active.values()):
                        self._listen(job, apart, lines)
            finally:
                self._leave(caught)
        if signal.SIGTERM in caught:
            raise SystemExit(128 + signal.SIGTERM)
        if caught:
            raise KeyboardInterrupt
        return self.failed

    def _begin(self, kind: str, lines: RunLines) -> bool:
        """Begin jobs while there is room; return whether any may begin later."""
        while len(self.active) < self.size:
            if self._stopping or self._is_late():
                self.waiting.clear()
            job = next_ready(self.waiting, self.active.keys())
            if job is None:
                break
            self.waiting.remove(job)
            if not fits(job, self.stored, kind, self.deadline, self.size):
                continue
            try:
                self._check_needs(job)
                job = self.complete(job)
            except CheckpointMismatchError as error:
                self._fail(job, str(error))
                continue
            apart = Apart(self.train, job, *self.args, log=job.folder / "log.txt")
            self.active[job.key] = job, apart
            self._begun[job.key] = time.monotonic()
            lines.begin(job)
        return bool(self.waiting)

    def _is_late(self) -> bool:
        """Return whether a run that begins now would end no epoch in time, as far as is known."""
        if self.deadline is None:
            return False
        left = self.deadline - time.monotonic()
        return left <= 0 or (self._soonest < math.inf and left < self._soonest)

    def _check_needs(self, job: Job) -> None:
        for name, seed in sorted(job.needs & self._lost):
            raise CheckpointMismatchError(f"it builds on {name}, seed {seed}, which did not end.")

    def _listen(self, job: Job, apart: Apart, lines: RunLines) -> None:
        said, ended = apart.heard()
        if said and job.key in self._begun:
            self._soonest = min(self._soonest, time.monotonic() - self._begun.pop(job.key))
        for done, words in said:
            lines.epoch(job, done, words)
        if ended is None:
            return
        del self.active[job.key]
        lines.end(job)
        self._end(job, ended)

    def _end(self, job: Job, ended: Ended) -> None:
        """Store what a run came to, or say what became of it."""
        if ended.error is None:
            outcome, environment = ended.answer
            folder = RunFolder(job.folder)
            made = conclude(folder, job.recipe, outcome, environment, self.where, self.console)
            if made is not None:
                self.stored.append(made)
            return
        if ended.kind == DataNotFoundError.__name__:  # the others miss it, too
            raise DataNotFoundError(ended.error)
        if self._stopping and not ended.kind:
            self._say(job, "ended at once; call again to go on")
            return
        self._fail(job, ended.error)

    def _fail(self, job: Job, words: str) -> None:
        self._lost.add(job.key)
        self.failed += 1
        self._say(job, words, style="red")

    def _say(self, job: Job, words: str, style: str | None = None) -> None:
        say(self.console, f"{title(job)}: {words}", style=style)

    def _leave(self, caught: Sequence[int]) -> None:
        """After an error of this process: let what is still active stop where it can go on."""
        for _, apart in self.active.values():
            apart.leave()
        while left := [apart for _, apart in self.active.values() if apart.alive]:
            time.sleep(TURN)
            for apart in left if caught else ():
                apart.kill()

    def _heed(self, caught: Sequence[int]) -> None:
        """Stop everything where it can be continued; at the second signal, at once."""
        if caught and not self._stopping:
            self._stopping = True
            fresh = sum(key in self._begun for key in self.active)
            anew = f" ({fresh} in the first epoch will begin anew)" if fresh else ""
            self.console.print(
                f"stopping: runs end their epoch and write a checkpoint{anew}; "
                "once more ends them at once"
            )
            for _, apart in self.active.values():
                apart.ask_to_stop()
        if len(caught) > 1:
            for _, apart in self.active.values():
                apart.kill()
