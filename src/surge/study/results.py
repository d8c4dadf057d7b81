"""The stored results: one line per finished run and metric, from which every table is made."""

import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from surge.errors import ConfigError
from surge.recipes.recipe import Recipe
from surge.train.loop import Outcome


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


def data_name(recipe: Recipe) -> str:
    """Say which images were trained and tested on."""
    name = f"{recipe.data.name}, {'held out' if recipe.data.held_out else 'test set'}"
    return name if recipe.data.limit is None else f"{name}, first {recipe.data.limit}"


def make_result(
    recipe: Recipe,
    overrides: dict[str, Any],
    seed: int,
    outcome: Outcome,
    environment: dict[str, Any],
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
        precision=recipe.train.precision if environment["cuda"] else "fp32",
        metric=recipe.metric,
        last=round(outcome.last, 4),
        best=round(outcome.best, 4),
        seconds=round(outcome.seconds, 1),
        hardware=str(environment["hardware"]),
        torch=str(environment["torch"]),
        commit=environment["commit"],
    )


def append(folder: Path, result: Result) -> Path:
    """Add one line; the file is created with its first."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{result.table}.jsonl"
    with path.open("a") as file:
        file.write(json.dumps(asdict(result)) + "\n")
    return path


def read(folder: Path, table: str) -> list[Result]:
    """Return the stored results of a table, oldest first."""
    path = folder / f"{table}.jsonl"
    known = {field.name for field in fields(Result)}
    results = []
    lines = path.read_text().splitlines() if path.exists() else []
    for number, line in enumerate(lines, start=1):
        try:
            content = json.loads(line)
            results.append(Result(**{key: content[key] for key in known}))
        except (json.JSONDecodeError, KeyError, TypeError) as error:
            raise ConfigError(f"{path}, line {number} is not a result: {error!r}.") from error
    return results


def select(results: Iterable[Result], **wanted: object) -> list[Result]:
    """Return the results whose fields have these values."""
    return [r for r in results if all(getattr(r, key) == value for key, value in wanted.items())]
