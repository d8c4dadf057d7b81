"""The stored results: one line per finished run and metric, from which every table is made."""

import json
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, fields
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO

from surge.errors import ConfigError
from surge.recipes import get_recipe
from surge.recipes.recipe import Recipe
from surge.train.loop import Outcome

NEUTRAL = ("epochs", "held_out", "limit", "precision", "size", "test_epochs")
"""Overrides that other fields of a result show, or that leave training alone but for rounding."""


@dataclass(frozen=True)
class Result:
    """One finished run, as ``results/<table>.jsonl`` stores it."""

    table: str
    row: str
    recipe: str
    overrides: dict[str, Any]
    seed: int
    epochs: int
    data: str
    precision: str
    metric: str
    last: float
    best: float
    seconds: float
    hardware: str
    torch: str
    commit: str | None
    side_by_side: int = 1
    """How many runs the machine did at once, at most: ``seconds`` are those of a shared one."""
    delivered: float | None = None
    """Share of the auxiliary gradient below the clamp, over the main one: mean over the epochs."""
    steps: int | None = None
    """Steps of a schedule that was fitted to a time; None where epochs say how long it was."""

    @property
    def setting(self) -> str:
        """What was changed in the recipe itself, as text; empty where nothing was.

        Such a run is not a run of its row: tables keep it apart.
        """
        return setting_of(self.overrides)

    @property
    def decides(self) -> bool:
        """Whether its metric is the one of its recipe; rows of an earlier version have none."""
        try:
            return get_recipe(self.recipe).metric == self.metric
        except ConfigError:
            return False


def setting_of(overrides: Mapping[str, Any]) -> str:
    """Return what was changed in a recipe itself, as text.

    >>> setting_of({"epochs": 3, "eta": 0.1, "budget": "60s"})
    'budget=60s, eta=0.1'
    """
    changed = sorted(key for key in overrides if key not in NEUTRAL)
    return ", ".join(f"{key}={overrides[key]}" for key in changed)


def data_name(recipe: Recipe) -> str:
    """Say which images or sentences were trained and tested on, and whose words they are."""
    own = "test set" if recipe.data.length is None else "dev set"
    name = f"{recipe.data.name}, {'held out' if recipe.data.held_out else own}"
    if recipe.data.size is not None:
        name += f", {recipe.data.size} px"
    if recipe.data.tokenizer:
        name += f", {Path(recipe.data.tokenizer).name}"
    return name if recipe.data.limit is None else f"{name}, first {recipe.data.limit}"


def make_result(
    recipe: Recipe,
    overrides: dict[str, Any],
    seed: int,
    outcome: Outcome,
    environment: dict[str, Any],
    delivered: float | None = None,
) -> Result:
    """Describe a finished run."""
    return Result(
        table=recipe.table,
        row=recipe.row,
        recipe=recipe.name,
        overrides=overrides,
        seed=seed,
        epochs=recipe.train.epochs,
        data=data_name(recipe),
        precision=precision_of(recipe, environment),
        metric=recipe.metric,
        last=round(outcome.last, 4),
        best=round(outcome.best, 4),
        seconds=round(outcome.seconds, 1),
        hardware=_over_time(environment, lambda place: place.get("hardware", "unknown")),
        torch=_over_time(environment, lambda place: place.get("torch", "unknown")),
        commit=_over_time(environment, lambda place: place.get("commit")),
        side_by_side=int(environment.get("side_by_side", 1)),
        delivered=delivered,
        steps=recipe.train.steps,
    )


def precision_of(recipe: Recipe, environment: Mapping[str, Any]) -> str:
    """Say with which arithmetic a run was trained."""
    return str(_over_time(environment, partial(_precision, recipe)))


def _over_time(environment: Mapping[str, Any], said: Callable[[Mapping[str, Any]], Any]) -> Any:
    """Return what is said of the place of a run, and from which epoch on it was another."""
    words = last = said(environment)
    for place in environment.get("later", ()):
        if said(place) != last:
            last = said(place)
            words = f"{words}, from epoch {place['epoch'] + 1} on {last}"
    return words


def _precision(recipe: Recipe, place: Mapping[str, Any]) -> str:
    # Runs begun by an earlier version do not say which device they used.
    device = place.get("device", "cuda" if place.get("cuda") else "cpu")
    return recipe.train.precision if device == "cuda" else "fp32"


def append(folder: Path, result: Result) -> Path:
    """Add one line; a line that is there already is not added again.

    A run whose end was cut short is concluded once more when it is resumed. On a full disk the
    file is left as it was. Several processes may add lines at once: each waits for its turn.
    """
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{result.table}.jsonl"
    line = json.dumps(asdict(result)).encode()
    with path.open("ab", buffering=0) as file, _alone(file):
        before = path.read_bytes()
        if line in before.splitlines():
            return path
        torn = before and not before.endswith(b"\n")
        try:
            file.write(b"\n" * bool(torn) + line + b"\n")
        except OSError:
            os.truncate(path, len(before))
            raise
    return path


@contextmanager
def _alone(file: BinaryIO) -> Iterator[None]:
    """Keep other processes from adding to a file; it is free again when this one closes it."""
    # Windows has no such locks, some network file systems neither: a single write must do there.
    with suppress(ImportError, OSError):
        import fcntl

        fcntl.flock(file, fcntl.LOCK_EX)
    yield


def read(folder: Path, table: str) -> list[Result]:
    """Return the stored results of a table, oldest first."""
    path = folder / f"{table}.jsonl"
    known = {field.name for field in fields(Result)}
    results = []
    lines = path.read_text(errors="replace").splitlines() if path.exists() else []
    for number, line in enumerate(lines, start=1):
        try:
            content = json.loads(line)
            result = Result(**{key: content[key] for key in known & content.keys()})
            for name in ("last", "best", "seconds"):
                if not isinstance(getattr(result, name), int | float):
                    raise TypeError(f"{name} is no number")
            results.append(result)
        except (json.JSONDecodeError, AttributeError, TypeError) as error:
            raise ConfigError(f"{path}, line {number} is not a result: {error!r}.") from error
    return results


def select(results: Iterable[Result], **wanted: object) -> list[Result]:
    """Return the results whose fields have these values."""
    return [r for r in results if all(getattr(r, key) == value for key, value in wanted.items())]
