"""What ``train`` and ``reproduce`` share: from the command line to a finished run."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from surge.cli.console import print_table
from surge.data import resolve_root
from surge.errors import ConfigError
from surge.recipes import get_recipe, overridden
from surge.recipes import list_recipes as recipe_names
from surge.recipes.recipe import Recipe
from surge.study import results
from surge.train.build import load_sets
from surge.train.distributed import World, joined
from surge.train.loop import LoopOptions, Outcome, Trainer, run_folder_name
from surge.train.run import RunFolder, describe_environment

if TYPE_CHECKING:
    from rich.console import Console

    from surge.cli.train import TrainCommand

OVERRIDES = ("epochs", "eta", "held_out", "limit", "precision", "accumulate")


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
    """Return the wanted device, or the GPU of this process, or the CPU."""
    if name is None:
        local = int(os.environ.get("LOCAL_RANK", "0"))
        return torch.device(f"cuda:{local}" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
    except RuntimeError as error:
        raise ConfigError(f'--device "{name}" is not known; use cpu, cuda or cuda:1.') from error
    if device.type == "cuda" and not torch.cuda.is_available():
        raise ConfigError(f'--device "{name}": torch sees no CUDA GPU on this machine.')
    return device


def seconds_of(budget: str) -> float:
    """Return the seconds in ``90s``, ``9m`` or ``2h``.

    >>> seconds_of("9m")
    540.0
    """
    found = re.fullmatch(r"(\d+(?:\.\d+)?)([smh]?)", budget.strip())
    if not found:
        raise ConfigError(f'--budget "{budget}" is not a time like 90s, 9m or 2h.')
    return float(found[1]) * {"": 1, "s": 1, "m": 60, "h": 3600}[found[2]]


def train_one(command: TrainCommand, console: Console) -> None:
    """Run or continue one recipe and store its result."""
    device = choose_device(command.device)
    changes = {
        n: getattr(command, n) for n in OVERRIDES if getattr(command, n) not in (None, False)
    }
    with joined(device) as world:
        if command.resume is not None:
            folder, recipe, environment = RunFolder.open(command.resume)
            if command.recipe not in (None, recipe.name):
                raise ConfigError(
                    f"--resume {command.resume} holds {recipe.name}, not {command.recipe}."
                )
            if changes:
                raise ConfigError(f"--resume continues as begun; drop --{next(iter(changes))}.")
            changes = environment.get("overrides", {})
        else:
            if command.recipe is None:
                raise ConfigError("Which recipe? Name one (surge train --list), or --resume DIR.")
            recipe = overridden(get_recipe(command.recipe), changes)
            out = command.out or run_folder_name(recipe, command.seed, Path("runs"))
            environment = describe_environment(device, command.seed, command.commit)
            environment["overrides"] = changes
            if world.leads:
                folder = RunFolder.create(out, recipe, environment)
            else:
                folder = RunFolder(out)
        budget = None if command.budget is None else time.monotonic() + seconds_of(command.budget)
        options = LoopOptions(
            compiled=command.compiled,
            captured=command.captured,
            save_every=command.save_every,
            deadline=budget,
        )
        sets = load_sets(recipe.data, resolve_root(command.data, os.environ))
        sink = tensorboard_sink(folder) if command.tensorboard and world.leads else None
        outcome = run_in(
            folder, recipe, sets, environment, device, options, console, world=world, sink=sink
        )
        if world.leads:
            conclude(folder, recipe, changes, outcome, environment, command.results, console)


def run_in(
    folder: RunFolder,
    recipe: Recipe,
    sets: Any,  # noqa: ANN401
    environment: dict[str, Any],
    device: torch.device,
    options: LoopOptions,
    console: Console,
    *,
    world: World | None = None,
    sink: Callable[[dict[str, Any]], None] | None = None,
) -> Outcome:
    """Train in a folder, from its newest checkpoint if it has one, showing every epoch."""
    trainer = Trainer(
        recipe,
        sets,
        seed=int(environment["seed"]),
        device=device,
        folder=folder,
        world=world,
        options=options,
    )
    if any(folder.checkpoints.glob("epoch-*.pt")):
        for sentence in trainer.resume():
            console.print(sentence, style="yellow")
        console.print(f"{recipe.name}: continuing after epoch {trainer.epoch}")
    console.print(
        f"{recipe.name}, seed {environment['seed']}: {recipe.train.epochs} epochs on "
        f"{environment['hardware']}, steps {trainer.mode}"
    )
    show = epoch_lines(console, recipe.train.epochs)

    def on_row(row: dict[str, Any]) -> None:
        folder.log(show(row))
        if sink is not None:
            sink(row)

    return trainer.run(on_row)


HEADER = "epoch     time   left      lr   loss  train    test  flips%  scale   dose%"


def epoch_lines(console: Console, epochs: int) -> Callable[[dict[str, Any]], str]:
    """Return a function that prints one fixed-width line per epoch, at most one a second."""
    begun, printed, first = time.monotonic(), 0.0, [-1]
    state = {"printed": printed}

    def show(row: dict[str, Any]) -> str:
        now = time.monotonic()
        if first[0] < 0:
            first[0] = row["epoch"]
            console.print(HEADER, style="dim")
        done = row["epoch"] - first[0] + 1
        left = (now - begun) / done * (epochs - row["epoch"] - 1)
        scale, dose = row.get("scale"), row.get("injected")
        line = (
            f"{row['epoch'] + 1:5d} {row['seconds']:7.2f}s {left:5.0f}s {row['lr']:7.4f} "
            f"{row['train_loss']:6.3f} {row['train_top1']:6.2f} {row['test_top1']:7.2f} "
            f"{row['flips']:7.3f}" + ("" if scale is None else f" {scale:6.4f} {100 * dose:6.3f}")
        )
        if now - state["printed"] >= 1 or row["epoch"] + 1 == epochs:
            state["printed"] = now
            console.print(line)
        return line

    return show


def conclude(
    folder: RunFolder,
    recipe: Recipe,
    overrides: dict[str, Any],
    outcome: Outcome,
    environment: dict[str, Any],
    where: Path,
    console: Console,
) -> None:
    """Say how the run ended, and store it if it is finished."""
    seed = int(environment["seed"])
    if not outcome.finished:
        console.print(
            f"Stopped after epoch {outcome.epochs} of {recipe.train.epochs}. Continue with: "
            f"surge train --resume {folder.path}"
        )
        return
    stored = results.append(
        where, results.make_result(recipe, overrides, seed, outcome, environment)
    )
    text = (
        f"{recipe.name} seed {seed}: {recipe.metric} {outcome.last:.2f} (last epoch), "
        f"{outcome.best:.2f} (best, epoch {outcome.best_epoch + 1}), {outcome.seconds:.1f} s, "
        f"steps {outcome.mode}"
    )
    folder.write("summary.txt", text + "\n")
    console.print(text, style="bold")
    console.print(f"stored in {stored}; evaluate with: surge evaluate {folder.path}")


def tensorboard_sink(folder: RunFolder) -> Callable[[dict[str, Any]], None]:
    """Return a function that writes every number of an epoch as a TensorBoard scalar."""
    from surge.errors import MissingDependencyError

    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError as error:
        raise MissingDependencyError(
            "TensorBoard is not installed: pip install 'surge-bnn[tracking]'"
        ) from error
    writer = SummaryWriter(str(folder.path / "tensorboard"))

    def write(row: dict[str, Any]) -> None:
        for key, value in row.items():
            if key != "epoch":
                writer.add_scalar(key, value, row["epoch"])
        writer.flush()

    return write
