"""Run folders as a study reads them: recipe, environment, epochs, records of the probe.

A stored run is a run folder without its checkpoints; ``results/runs`` holds some.
"""

from __future__ import annotations

import math
import re
import shutil
import struct
import zipfile
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from tokenize import TokenError
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from surge.recipes.recipe import Recipe
from surge.study.results import NEUTRAL, data_name, precision_of
from surge.train.probe.recorder import read_records
from surge.train.run import CONFIG, PREDICTIONS, RunFolder

Arrays = Mapping[str, NDArray[Any]]
Key = TypeVar("Key")
TOLD = (CONFIG, "env.json")
"""Files that name places of the machine they were written on."""
KEPT = (*TOLD, "metrics.jsonl", PREDICTIONS, "probe.jsonl", "summary.txt")
UNREADABLE = (
    *(OSError, EOFError, ValueError, TypeError, RuntimeError),
    *(zipfile.BadZipFile, zlib.error, struct.error, TokenError),
)
"""What numpy raises for archives with bytes turned or missing."""


@dataclass(frozen=True, eq=False)
class StoredRun:
    """One run, finished or not."""

    path: Path
    recipe: Recipe
    environment: Mapping[str, Any]
    epochs: Sequence[Mapping[str, Any]]
    """Lines of ``metrics.jsonl``."""
    records: Sequence[Mapping[str, Any]]
    """Lines of ``probe.jsonl``; empty unless ``--record`` was given."""
    maps: Mapping[int, Arrays]
    """Heat maps by epoch."""
    damaged: Sequence[Path] = ()
    """Heat maps that cannot be read."""

    @property
    def seed(self) -> int:
        """The seed."""
        return int(self.environment["seed"])

    @property
    def setting(self) -> str:
        """What was changed in the recipe itself."""
        changed = self.environment.get("overrides") or {}
        return " ".join(f"{key}={changed[key]}" for key in sorted(changed) if key not in NEUTRAL)

    @property
    def arm(self) -> str:
        """What the run is one seed of: the recipe with what was changed in it."""
        return f"{self.recipe.name} {self.setting}".rstrip()

    @property
    def data(self) -> str:
        """What it was tested on: ``test set``, ``held out``, ``test set, first 100``."""
        return data_name(self.recipe).removeprefix(f"{self.recipe.data.name}, ")

    @property
    def precision(self) -> str:
        """With which arithmetic it was trained."""
        return precision_of(self.recipe, self.environment)

    @property
    def network(self) -> str:
        """What the run can be compared with: the table, the first word of the row, the epochs."""
        recipe = self.recipe
        parts = [recipe.table, recipe.row.split("-")[0], f"{recipe.train.epochs}ep"]
        if recipe.data.held_out:
            parts.append("val")
        if recipe.data.limit is not None:
            parts.append(f"first{recipe.data.limit}")
        return "-".join(parts)

    @property
    def written(self) -> float:
        """When the last epoch was added to the folder."""
        file = self.path / "metrics.jsonl"
        return file.stat().st_mtime if file.exists() else 0.0

    @property
    def finished(self) -> bool:
        """Whether all epochs are there."""
        return len(self.epochs) >= self.recipe.train.epochs

    @property
    def metric(self) -> str:
        """The column of ``epochs`` that decides."""
        return f"test_{self.recipe.metric}"

    @property
    def last(self) -> float | None:
        """The metric after the last epoch that was tested, in percent."""
        tested = [row[self.metric] for row in self.epochs if self.metric in row]
        return number(tested[-1]) if tested else None

    @property
    def best(self) -> float | None:
        """The largest value of the metric over all epochs."""
        found = [number(row.get(self.metric)) for row in self.epochs]
        return max((value for value in found if value is not None), default=None)

    @property
    def seconds(self) -> float:
        """Time of all epochs."""
        return sum(number(row.get("seconds")) or 0.0 for row in self.epochs)


def number(value: object) -> float | None:
    """Return a finite number, or None: JSON of a diverged run holds NaN."""
    known = isinstance(value, int | float) and math.isfinite(value)
    return float(value) if known else None  # type: ignore[arg-type]


def open_run(path: Path) -> StoredRun:
    """Read a run folder.

    Raises:
        CheckpointMismatchError: it is not one, or its config or environment is damaged.
    """
    folder, recipe, environment = RunFolder.open(path)
    maps, damaged = {}, []
    for file in sorted((path / "probe-maps").glob("epoch*.npz")):
        try:
            with np.load(file) as arrays:
                maps[int(file.stem.removeprefix("epoch"))] = dict(arrays)
        except UNREADABLE:
            damaged.append(file)
    records = read_records(folder)
    return StoredRun(path, recipe, environment, folder.metrics(), records, maps, damaged)


def store(path: Path, where: Path) -> Path:
    """Copy what is worth keeping of a run to ``where/<name of the folder>``; no checkpoints.

    Of the heat maps the last is kept, of a place on this machine its name.
    """
    target = where / path.name
    target.mkdir(parents=True, exist_ok=True)
    for name in KEPT:
        if (path / name).exists():
            shutil.copyfile(path / name, target / name)
    for file in (target / name for name in TOLD):
        if file.exists():
            file.write_text(names_alone(file.read_text(encoding="utf-8")), encoding="utf-8")
    for file in sorted((path / "probe-maps").glob("epoch*.npz"))[-1:]:
        (target / "probe-maps").mkdir(exist_ok=True)
        shutil.copyfile(file, target / "probe-maps" / file.name)
    return target


def names_alone(text: str) -> str:
    """Return a text whose absolute paths are cut down to their last part.

    >>> names_alone("surge train digits-cnn-recu --out /home/me/runs/a --results ./results")
    'surge train digits-cnn-recu --out a --results ./results'
    """
    return re.sub(r"(?<![\w.:/~-])/(?:[\w.+-]+/)*([\w.+-]+)", r"\1", text)


def ordered(runs: Sequence[StoredRun]) -> list[StoredRun]:
    """Return the runs by network, arm and seed: a base comes before what is added to it."""
    return sorted(runs, key=lambda run: (run.network, run.arm, run.seed))


def grouped(
    runs: Sequence[StoredRun], key: Callable[[StoredRun], Key]
) -> dict[Key, list[StoredRun]]:
    """Return the runs by some key, in the order given."""
    found: dict[Key, list[StoredRun]] = {}
    for run in runs:
        found.setdefault(key(run), []).append(run)
    return found


def arms(runs: Sequence[StoredRun]) -> dict[str, list[StoredRun]]:
    """Return the runs by arm, in the order given."""
    return grouped(runs, lambda run: run.arm)


def networks(runs: Sequence[StoredRun]) -> dict[str, list[StoredRun]]:
    """Return the runs by network, in the order given."""
    return grouped(runs, lambda run: run.network)


def one_per_seed(runs: Sequence[StoredRun]) -> list[StoredRun]:
    """Return one run of each seed: a finished one before others, then the one written last."""
    same = grouped(runs, lambda run: (run.arm, run.network, run.data, run.seed))
    return [max(held, key=lambda run: (run.finished, run.written)) for held in same.values()]


def in_words(network: str) -> str:
    """Return a network as titles have it.

    >>> in_words("cifar10-resnet20-60ep-val"), in_words("my-data-cnn-1ep-first100")
    ('cifar10 resnet20, 60 epochs, held out', 'my-data cnn, 1 epoch, first 100')
    """
    found = re.fullmatch(r"(.+)-(\w+)-(\d+)ep(-val)?(?:-first(\d+))?", network)
    if found is None:
        return network
    table, model, epochs, held_out, first = found.groups()
    parts = [f"{table} {model}", f"{epochs} epoch{'s' * (epochs != '1')}"]
    parts += ["held out"] * bool(held_out) + [f"first {first}"] * bool(first)
    return ", ".join(parts)


def without_surge(arm: str) -> str | None:
    """Return the arm that one with SURGE is compared with.

    >>> without_surge("digits-cnn-recu-surge-noise eta=0.1"), without_surge("digits-cnn-recu")
    ('digits-cnn-recu', None)
    """
    base, found, rest = arm.partition("-surge")
    if not found:
        return None
    # What follows directly is the variant, then come changed settings.
    settings = rest.split(" ")[1:]
    kept = [part for part in settings if not part.startswith(("eta=", "fixed_scale="))]
    return " ".join([base, *kept])
