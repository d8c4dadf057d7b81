"""What ``train`` and ``reproduce`` share: from the command line to a finished run."""

from __future__ import annotations

import os
import shlex
import sys
import time
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from surge.cli._going_on import (
    OVERRIDES,
    changes_of,
    continued,
    make,
    notes_of,
    started_before,
    taken_up,
    with_habits,
)
from surge.cli._progress import conclude, epoch_lines, step_lines, tensorboard_sink
from surge.cli._stopping import stoppable
from surge.cli.console import print_table, say
from surge.data import resolve_root
from surge.errors import ConfigError
from surge.files import check_folder
from surge.recipes import get_recipe, overridden
from surge.recipes import list_recipes as recipe_names
from surge.recipes.placing import placed
from surge.recipes.recipe import Recipe
from surge.recipes.voc import shortened
from surge.train.budget import as_begun, fitted, in_seconds, seconds_of
from surge.train.build import Sets, load_sets
from surge.train.distributed import World, joined
from surge.train.loop import LoopOptions, Outcome, Trainer
from surge.train.processes.neighbours import counted, place_of
from surge.train.run import RunFolder, default_path, describe_environment, hardware
from surge.train.task import task_of

if TYPE_CHECKING:
    from rich.console import Console

    from surge.cli.train import TrainCommand


def list_recipes(console: Console) -> None:
    """Print every recipe with what the paper says."""
    recipes = [get_recipe(name) for name in recipe_names()]
    rows = [
        {"recipe": r.name, "model": r.model.name, "epochs": r.train.epochs, "paper": r.paper}
        for r in recipes
    ]
    print_table(console, rows, title="Recipes")
    console.print("Any binary row also exists as <row>-surge-<variant>.")


def choose_device(name: str | None) -> torch.device:
    """Return the wanted device, or the GPU of this process, or the CPU.

    A GPU becomes the current one: streams and kernels that name none go there.
    """
    name = name or ("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
    except RuntimeError as error:
        raise ConfigError(f'--device "{name}" is not known; use cpu, cuda or cuda:1.') from error
    if device.type not in ("cpu", "cuda"):
        raise ConfigError(f'--device "{name}" is not supported; use cpu, cuda or cuda:1.')
    if device.type == "cuda" and not torch.cuda.is_available():
        raise ConfigError(f'--device "{name}": torch sees no CUDA GPU on this machine.')
    if device.type == "cpu":
        return device
    index = int(os.environ.get("LOCAL_RANK", "0")) if device.index is None else device.index
    if index >= torch.cuda.device_count():
        raise ConfigError(
            f'--device "{name}": there is no GPU {index}, torch sees {torch.cuda.device_count()}.'
        )
    torch.cuda.set_device(index)
    return torch.device("cuda", index)


def deadline_of(budget: str | None) -> float | None:
    """Return when a budget that starts now is spent, by ``time.monotonic``."""
    return None if budget is None else time.monotonic() + seconds_of(budget)


def environment_of(
    device: torch.device, seed: int, commit: str | None, changes: dict[str, Any]
) -> dict[str, Any]:
    """Describe where and how a new run happens."""
    command = shlex.join(["surge", *sys.argv[1:]])
    found = describe_environment(device, seed, commit=commit, command=command)
    return {**found, "overrides": changes}


def train_one(command: TrainCommand, console: Console) -> None:
    """Run or continue one recipe and store its result."""
    command = command if command.resume is None else with_habits(command, command.resume)
    check_folder(command.results, "--results")  # not after hours of training
    device = choose_device(command.device)
    options = LoopOptions(
        compiled=command.compiled,
        captured=command.captured,
        lean=command.lean,
        save_every=command.save_every,
        save_steps=command.save_steps,
        workers=command.workers,
        deadline=deadline_of(command.budget),
        record_every=_record_every(command),
        record_theorem=command.record_theorem,
    )
    with joined(device) as world:
        if command.resume is not None:
            folder, recipe, environment = continued(command, command.resume)
            sets, create = _loaded(recipe, command), None
        else:
            recipe, environment = _wanted(command, device)
            folder = RunFolder(
                command.out or default_path(recipe, environment["seed"], Path("runs"))
            )
            check_folder(folder.path)
            again = started_before(folder, world, device)
            if world.leads and not again:
                folder.check_free()  # at once, not after the data and a trial
            sets = _loaded(recipe, command)
            task_of(recipe.data).check(recipe, sets, world.size)
            if command.budget is not None and recipe.train.schedule == "steps":
                if world.size > 1:
                    raise ConfigError("--budget fits a schedule in one process: drop torchrun.")
                given = environment["overrides"]["budget"] = in_seconds(command.budget)
                if again and folder.begun:
                    recipe = as_begun(recipe, folder.path)
                else:
                    recipe = fit(recipe, sets, given, environment["seed"], device, options, console)
                options = replace(options, deadline=None)
            environment = taken_up(folder, recipe, environment) if again else environment
            create = partial(make, folder, recipe, environment, world, device, anew=again)
        if world.leads and (command.resume is not None or folder.begun):
            here = environment_of(device, int(environment["seed"]), command.commit, {})
            environment = folder.went_on(recipe, environment, here)
        sink = tensorboard_sink(folder) if command.tensorboard and world.leads else None
        try:
            # Several processes hear of a signal one by one, and would have to agree.
            with stoppable(console) if world.size == 1 else nullcontext() as asked:
                options = replace(options, stop=asked)
                parts = (folder, recipe, sets, environment, device, options, console)
                outcome = run_in(*parts, world=world, sink=sink, make=create)
            if world.leads:
                conclude(folder, recipe, outcome, environment, command.results, console)
        except (KeyboardInterrupt, OSError):
            if folder.there:
                line = f"Continue with: surge train --resume {shlex.quote(str(folder.path))}"
                say(console, line)
            raise
        if asked is not None and asked() and not outcome.finished:
            raise KeyboardInterrupt


def _record_every(command: TrainCommand) -> int | None:
    if command.record_every is not None and command.record_every < 1:
        raise ConfigError(f"--record-every {command.record_every} must be at least 1.")
    asked = command.record or command.record_theorem or command.record_every is not None
    return (command.record_every or 0) if asked else None


def fit(
    recipe: Recipe,
    sets: Sets,
    time_given: str,
    seed: int,
    device: torch.device,
    options: LoopOptions,
    console: Console,
) -> Recipe:
    """Return the recipe with a schedule that takes as long as the time that is given."""
    console.print(f"{recipe.name}, seed {seed}: timing steps and a test, to fit {time_given}")
    seconds = seconds_of(time_given)
    return fitted(recipe, sets, seconds, seed=seed, device=device, options=options)


def _wanted(command: TrainCommand, device: torch.device) -> tuple[Recipe, dict[str, Any]]:
    """Return the recipe of a new run, with the command's changes, and its environment."""
    if command.recipe is None:
        raise ConfigError("Which recipe? Name one (surge train --list), or --resume DIR.")
    changes = changes_of(command, OVERRIDES)
    recipe = get_recipe(command.recipe)
    recipe = overridden(shortened(recipe) if command.short else recipe, changes)
    recipe = placed(
        recipe,
        model=command.model,
        teacher=command.teacher,
        start=command.start,
        backbone=command.backbone,
    )
    seed = command.seed or 0
    if not -(2**63) <= seed < 2**63:
        raise ConfigError(f"--seed {seed} does not fit in 64 bits.")
    environment = environment_of(device, seed, command.commit, changes)
    return recipe, {**environment, **notes_of(command)}


def _loaded(recipe: Recipe, command: TrainCommand) -> Sets:
    """Return what a recipe trains and tests on."""
    check_workers(command.workers, recipe)
    return load_sets(recipe.data, resolve_root(command.data, os.environ), command.workers)


def check_workers(workers: int | None, recipe: Recipe) -> None:
    """Refuse workers for a recipe whose data are no image files."""
    if workers is not None and recipe.data.size is None:
        raise ConfigError(f"{recipe.name} decodes no image files: --workers changes nothing.")


def prepare_in(
    folder: RunFolder,
    recipe: Recipe,
    sets: Sets,
    environment: dict[str, Any],
    device: torch.device,
    options: LoopOptions,
    console: Console,
    *,
    world: World | None = None,
    sink: Callable[[dict[str, Any]], None] | None = None,
    label: str = "",
    make: Callable[[], None] | None = None,
) -> Callable[[], Outcome]:
    """Build a run in a folder, at its newest checkpoint if it has one; return what trains it.

    Every epoch is shown; ``label`` ends every line, where several runs are shown at once. ``make``
    makes the folder: a run that cannot be built leaves none.
    """
    world = world or World()
    trainer = Trainer(
        recipe,
        sets,
        seed=int(environment["seed"]),
        device=device,
        folder=folder,
        world=world,
        options=options,
    )
    if make is not None:
        make()

    def note(line: str, style: str | None = None) -> None:
        say(console, line, style)
        if world.leads:
            folder.log(line)

    note(
        f"{recipe.name}, seed {environment['seed']}: {_length(recipe)} on "
        f"{hardware(device)}; steps {trainer.mode} ({trainer.mode.why})"
    )
    if world.size > 1:
        note(
            f"{world.size} processes share every batch of {recipe.train.batch}; learning rate "
            f"{recipe.train.lr:g} for that batch, whatever their number"
        )
    for sentence in trainer.task.remarks(sets):
        note(sentence)
    _go_on(trainer, note)
    show = epoch_lines(console, recipe.train.epochs, recipe.metric, label)

    def train() -> Outcome:
        with counted(place_of(device) if world.leads else None) as neighbours:

            def on_row(row: dict[str, Any]) -> None:
                line = show(row)
                if world.leads:
                    folder.log(line)
                    note_shared(folder, environment, neighbours())
                if sink is not None:
                    sink(row)

            return trainer.run(on_row, step_lines(console, label))

    return train


def _go_on(trainer: Trainer, note: Callable[..., None]) -> None:
    """Take the newest checkpoint, if a process of the run finds one; forget epochs without one."""
    folder = trainer.folder
    if trainer.world.any(folder.begun, trainer.device):
        for sentence in trainer.resume():
            note(sentence, "yellow")
        note(f"continuing after epoch {trainer.epoch}")
    elif trainer.world.leads:
        if folder.metrics():
            note("no checkpoint was written yet: beginning again", "yellow")
        folder.keep_metrics(0)  # of epochs whose state was never saved


def note_shared(folder: RunFolder, environment: dict[str, Any], number: int) -> None:
    """Remember how many runs shared the machine, at most: the seconds of a run depend on that."""
    if number > int(environment.get("side_by_side", 1)):
        environment["side_by_side"] = number
        folder.write_environment(environment)


def run_in(*args: Any, **kwargs: Any) -> Outcome:
    """Do at once what :func:`prepare_in` prepares."""
    return prepare_in(*args, **kwargs)()


def _length(recipe: Recipe) -> str:
    """Say how long a run is, in steps where its schedule was fitted to a time."""
    epochs = f"{recipe.train.epochs} epoch{'s' * (recipe.train.epochs != 1)}"
    return epochs if recipe.train.steps is None else f"{recipe.train.steps} steps ({epochs})"
