"""Runs that go on: what ``--resume`` keeps, and commands that torchrun or Slurm started anew."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from surge.errors import ConfigError
from surge.train.distributed import World, job_of, restarted
from surge.train.run import RunFolder

if TYPE_CHECKING:
    import torch

    from surge.cli.train import TrainCommand
    from surge.recipes.recipe import Recipe

OVERRIDES = (
    *("epochs", "eta", "fixed_scale", "align", "held_out", "limit", "precision", "accumulate"),
    *("scores", "teacher_dropout"),
    *("size", "batch", "lr", "label_smoothing", "sync_norm", "test_epochs"),
)
PLACES = ("out", "model", "teacher", "start", "backbone", "short")
"""Options that a run keeps, beside those."""
HABITS = ("data", "results", "record", "record_every", "record_theorem", "tensorboard")
"""Options that a resumed run has again, unless it is given others."""


def changes_of(command: object, names: Sequence[str]) -> dict[str, Any]:
    """Return what a command changes in a recipe: the options that were given."""
    values = {name: getattr(command, name) for name in names}
    return {key: v for key, v in values.items() if v is not None and v is not False}


def notes_of(command: TrainCommand) -> dict[str, Any]:
    """Return what a new run writes down for later starts: its habits, and the job it belongs to."""
    job = job_of(os.environ)
    return {"habits": _habits(command), **({} if job is None else {"job": job})}


def _habits(command: TrainCommand) -> dict[str, Any]:
    """Return the options that resumed runs keep, as far as they are not the usual ones."""
    usual = {f.name: f.default for f in fields(command)}
    given = {name: getattr(command, name) for name in HABITS}
    kept = {n: str(v) if n == "results" else v for n, v in given.items() if v != usual[n]}
    if "data" in kept:
        kept["data"] = str(Path(kept["data"]).expanduser().absolute())
    return kept


def with_habits(command: TrainCommand, path: Path) -> TrainCommand:
    """Return a command that continues a run the way it was begun."""
    held = RunFolder.open(path)[2].get("habits", {})
    again = {n: v for n, v in held.items() if n in HABITS and n not in _habits(command)}
    if "results" in again:
        again["results"] = Path(again["results"])
    return replace(command, **again)


def continued(command: TrainCommand, path: Path) -> tuple[RunFolder, Recipe, dict[str, Any]]:
    """Return the run to continue; whatever would change it is refused."""
    folder, recipe, environment = RunFolder.open(path)
    if command.recipe not in (None, recipe.name):
        raise ConfigError(f"--resume {path} holds {recipe.name}, not {command.recipe}.")
    if command.seed not in (None, environment["seed"]):
        raise ConfigError(f"--resume {path} has seed {environment['seed']}, not {command.seed}.")
    for name in changes_of(command, (*OVERRIDES, *PLACES)):
        raise ConfigError(f"--resume continues as begun; drop --{name.replace('_', '-')}.")
    return folder, recipe, environment


def started_before(folder: RunFolder, world: World, device: torch.device) -> bool:
    """Return whether torchrun or Slurm started this command before, as far as any process knows."""
    job = job_of(os.environ)
    own = job is not None and folder.there and RunFolder.open(folder.path)[2].get("job") == job
    return world.any(own or restarted(os.environ), device)


def taken_up(folder: RunFolder, recipe: Recipe, environment: dict[str, Any]) -> dict[str, Any]:
    """Return the environment of a run whose command was started anew: that of its first start."""
    if not folder.begun:
        return environment
    _, held, before = RunFolder.open(folder.path)
    if held != recipe or before["seed"] != environment["seed"]:
        raise ConfigError(
            f"{folder.path} holds {held.name}, seed {before['seed']}, which is not the run "
            "that was restarted. Choose another folder with --out."
        )
    return before


def make(
    folder: RunFolder,
    recipe: Recipe,
    environment: dict[str, Any],
    world: World,
    device: torch.device,
    *,
    anew: bool,
) -> None:
    """Make the folder of a run that can begin; one ``anew`` may have a checkpoint already."""
    begun = anew and world.any(folder.begun, device)
    if world.leads and not begun:
        RunFolder.create(folder.path, recipe, environment, anew=anew)
