"""Checkpoints that survive a kill, a full disk and a torn write."""

import io
import pickle
from pathlib import Path
from typing import Any

import torch

from surge.errors import CheckpointMismatchError
from surge.files import UNFINISHED, atomic

FORMAT = 1
KEPT = 2
UNREADABLE = (
    *(RuntimeError, OSError, EOFError, pickle.UnpicklingError),
    *(ValueError, KeyError, IndexError, AttributeError, TypeError),
)
"""What torch raises for a file that is no checkpoint, or no whole one."""


def save(folder: Path, state: dict[str, Any], epoch: int) -> Path:
    """Write ``epoch-00012.pt`` (epochs done) and remove all but the newest few."""
    path = folder / f"epoch-{epoch:05d}.pt"
    for left in folder.glob(f".*{UNFINISHED}"):  # of a process that was killed while writing
        left.unlink()
    # Not straight into the file: torch turns a full disk into an error of its own.
    buffer = io.BytesIO()
    torch.save({"format": FORMAT, "epoch": epoch, **state}, buffer)
    with atomic(path) as file:
        file.write(buffer.getbuffer())
    for old in found(folder)[KEPT:]:
        old.unlink()
    return path


def found(folder: Path) -> list[Path]:
    """Return the checkpoints of a folder, newest first."""
    return sorted(folder.glob("epoch-*.pt"), reverse=True)


def epochs_done(folder: Path) -> int:
    """Return the epochs of the newest checkpoint, by its name; 0 without one."""
    numbers = (path.stem.partition("-")[2] for path in found(folder))
    return max((int(number) for number in numbers if number.isdigit()), default=0)


def load_newest(
    folder: Path, recipe: str, device: torch.device
) -> tuple[dict[str, Any], list[str]]:
    """Return the newest readable checkpoint, and a sentence for each that was passed over."""
    damaged: list[str] = []
    for path in found(folder):
        try:
            state = torch.load(path, map_location=device, weights_only=True)
        except UNREADABLE as e:
            damaged.append(f"{path.name} is damaged ({type(e).__name__})")
            continue
        _check(state, path, recipe)
        return state, [f"{what}; {path.name} is used instead." for what in damaged]
    why = f": {', '.join(damaged)}" if damaged else ""
    raise CheckpointMismatchError(f"{folder} holds no readable checkpoint{why}.")


def load_one(path: Path, recipe: str | None, device: torch.device) -> dict[str, Any]:
    """Return what one file holds, or raise; without the name of a recipe any will do."""
    try:
        state = torch.load(path, map_location=device, weights_only=True)
    except UNREADABLE as error:
        raise CheckpointMismatchError(f"{path} cannot be read as a checkpoint.") from error
    _check(state, path, recipe)
    found: dict[str, Any] = state
    return found


def _check(state: Any, path: Path, recipe: str | None) -> None:
    if not isinstance(state, dict) or state.get("format") != FORMAT:
        raise CheckpointMismatchError(
            f"{path} is not a checkpoint of this package (format {FORMAT})."
        )
    if recipe is not None and state.get("recipe") != recipe:
        raise CheckpointMismatchError(
            f'{path} belongs to the recipe "{state.get("recipe")}", not to "{recipe}".'
        )
