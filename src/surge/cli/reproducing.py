"""The work behind ``surge reproduce``."""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING

from surge.cli.training import choose_device, conclude, run_in, seconds_of
from surge.data import resolve_root
from surge.recipes import get_recipe, list_recipes, overridden
from surge.recipes.recipe import Recipe
from surge.study import results
from surge.study.queue import fitting, missing
from surge.study.tables import make_rows, markdown
from surge.train.build import load_sets
from surge.train.loop import LoopOptions
from surge.train.run import RunFolder, describe_environment, hardware

if TYPE_CHECKING:
    from rich.console import Console

    from surge.cli.reproduce import ReproduceCommand


def chosen_recipes(command: ReproduceCommand) -> list[Recipe]:
    """Return the recipes of the wanted rows, with the command's changes."""
    names = list_recipes(command.table)
    if command.rows:
        names = [f"{command.table}-{row}" for row in command.rows]
    changes = {k: getattr(command, k) for k in ("epochs", "held_out")}
    changes = {k: v for k, v in changes.items() if v not in (None, False)}
    return [overridden(get_recipe(name), changes) for name in names]


def reproduce(command: ReproduceCommand, console: Console) -> None:
    """Do the missing runs that fit the budget, storing each as it ends; then print the table."""
    recipes = chosen_recipes(command)
    if not command.table_only:
        _work(command, recipes, console)
    stored = results.read(command.results, command.table)
    console.print(markdown(make_rows(recipes, stored)), soft_wrap=True, markup=False)


def _work(command: ReproduceCommand, recipes: list[Recipe], console: Console) -> None:
    device = choose_device(command.device)
    deadline = None if command.budget is None else time.monotonic() + seconds_of(command.budget)
    stored = results.read(command.results, command.table)
    jobs = missing(recipes, command.seeds, stored, command.runs)
    console.print(f"{len(jobs)} of {len(recipes) * len(command.seeds)} runs are missing")
    root = resolve_root(command.data, os.environ)
    changes = {k: getattr(command, k) for k in ("epochs", "held_out")}
    changes = {k: v for k, v in changes.items() if v not in (None, False)}
    for job in fitting(jobs, stored, hardware(device), deadline):
        if job.begun:
            folder, recipe, environment = RunFolder.open(job.folder)
        else:
            recipe = job.recipe
            environment = describe_environment(device, job.seed, command.commit)
            folder = RunFolder.create(job.folder, recipe, environment)
        sets = load_sets(recipe.data, root)
        options = LoopOptions(deadline=deadline)
        outcome = run_in(folder, recipe, sets, environment, device, options, console)
        conclude(folder, recipe, changes, outcome, environment, command.results, console)
