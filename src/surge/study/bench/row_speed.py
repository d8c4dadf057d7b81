"""Speed and memory of the rows of a table: measured in turns, stored beside its accuracies."""

import gc
import json
import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path

import torch

from surge.files import json_lines
from surge.recipes.recipe import Recipe
from surge.study.bench.elsewhere import FailedElsewhereError, Subject
from surge.train.build import Sets
from surge.train.loop import LoopOptions, Trainer
from surge.train.run import RunFolder, hardware

WARM = 12
"""Steps before the first one that is timed: they compile, capture and fill caches."""


@dataclass(frozen=True)
class Facts:
    """What does not change from step to step."""

    peak_mib: float | None
    """Most memory since building began; None off a GPU."""
    steps: str
    """How steps run: eager, compiled, compiled and captured."""
    precision: str
    batch: int
    per_epoch: int
    """Steps of an epoch."""
    hardware: str


class RowSteps:
    """The steps of a row's first epoch, compiled, captured and warm."""

    def __init__(self, recipe: Recipe, sets: Sets, device: torch.device, *, warm: int) -> None:
        """Build everything and do ``warm`` steps."""
        self.device, cuda = device, device.type == "cuda"
        gc.collect()
        before = 0
        if cuda:
            torch.cuda.synchronize(device)  # it may be the first that this process does there
            before = torch.cuda.memory_allocated(device)
            torch.cuda.reset_peak_memory_stats(device)
        self.trainer = Trainer(
            recipe,
            sets,
            seed=0,
            device=device,
            folder=RunFolder(Path("unused")),  # nothing is written before an epoch ends
            options=LoopOptions(save_every=1e9),
        )
        self.trainer.begin_epoch()
        loader = self.trainer.train_loader
        self.batches = [b for b in self.trainer.batches() if len(b[0]) == loader.batch_size]
        self._do(warm)
        self.facts = Facts(
            (torch.cuda.max_memory_allocated(device) - before) / 2**20 if cuda else None,
            str(self.trainer.mode),
            recipe.train.precision if cuda else "fp32",
            loader.batch_size,
            len(loader),
            hardware(device),
        )

    def seconds(self, count: int) -> float:
        """Return the time of a step, from a block of them."""
        self._do(1)
        start = time.perf_counter()
        self._do(count)
        return (time.perf_counter() - start) / count

    def _do(self, count: int) -> None:
        for index in range(count):
            self.trainer.step(*self.batches[index % len(self.batches)])
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)


def facts_of(steps: RowSteps) -> Facts:
    """Return what does not change while steps are timed."""
    return steps.facts


def timed(
    rows: Mapping[str, Subject[RowSteps]],
    *,
    rounds: int,
    block: int,
    on_failure: Callable[[str, str], None],
) -> dict[str, tuple[Facts, float]]:
    """Time blocks of steps in turns; return the facts and the median seconds of every row.

    Rows that fail are reported and left out.
    """
    facts: dict[str, Facts] = {}
    times: dict[str, list[float]] = {name: [] for name in rows}
    for _ in range(rounds):
        for name in list(times):
            try:
                facts[name] = rows[name].ask(facts_of)
                times[name].append(rows[name].ask(partial(RowSteps.seconds, count=block)))
            except FailedElsewhereError as error:
                del times[name]
                on_failure(name, str(error))
    return {name: (facts[name], statistics.median(taken)) for name, taken in times.items()}


@dataclass(frozen=True)
class RowSpeed:
    """What a training step of one row costs (``benchmarks/common.py``)."""

    row: str
    method: str
    surge: bool
    batch: int
    precision: str
    steps: str
    step_ms: float
    images_per_s: float
    peak_mib: float | None
    """Most memory of the process that trains, the data set included; None off a GPU."""
    hardware: str
    torch: str
    commit: str | None


def _path(folder: Path, table: str) -> Path:
    return folder / f"{table}_speed.jsonl"


def append(folder: Path, line: RowSpeed, table: str = "common") -> None:
    """Store what was measured."""
    folder.mkdir(parents=True, exist_ok=True)
    with _path(folder, table).open("a") as file:
        file.write(json.dumps(asdict(line)) + "\n")


def read(folder: Path, table: str = "common") -> dict[str, RowSpeed]:
    """Return what is stored by row; the newest of a row counts."""
    return {line["row"]: RowSpeed(**line) for line in json_lines(_path(folder, table))}


def columns(found: Mapping[str, RowSpeed]) -> dict[str, dict[str, str]]:
    """Return two columns for a table, by heading and row; none where nothing was measured."""
    if not found:
        return {}
    return {
        "images/s": {row: f"{line.images_per_s:,.0f}" for row, line in found.items()},
        "MiB": {
            row: f"{line.peak_mib:,.0f}" for row, line in found.items() if line.peak_mib is not None
        },
    }


def facts(found: Mapping[str, RowSpeed]) -> str:
    """Say where the two columns come from."""
    if not found:
        return ""
    used = {
        name: ", ".join(sorted({str(getattr(line, name)) for line in found.values()}))
        for name in ("hardware", "torch", "steps", "batch")
    }
    return (
        f"images/s and MiB (most memory of a process, the data set included): training steps of "
        f"{used['batch']} images, {used['steps']}, timed in turns on one {used['hardware']}, torch "
        f"{used['torch']} (`benchmarks/common.py`).\n"
    )
