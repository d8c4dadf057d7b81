"""Measured speed and memory of the rows of a table, beside its accuracies."""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path


@dataclass(frozen=True)
class RowSpeed:
    """What a training step of one row costs (``benchmarks/common.py``)."""

    row: str
    method: str
    surge: bool
    batch: int
    precision: str
    steps: str
    """How steps run: eager, compiled, compiled and captured."""
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
    path = _path(folder, table)
    lines = path.read_text().splitlines() if path.exists() else []
    return {line.row: line for line in (RowSpeed(**json.loads(text)) for text in lines)}


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
