"""What ``surge reproduce`` shall run: recipes with the command's changes, in the order to run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from surge.cli._going_on import changes_of
from surge.errors import ConfigError
from surge.recipes import get_recipe, list_recipes, overridden
from surge.recipes.glue import with_model
from surge.recipes.placing import start_of, teacher_of
from surge.recipes.recipe import Recipe
from surge.recipes.variants import SWEPT, has_number, with_number
from surge.recipes.voc import TEACHER, shortened, with_backbone
from surge.study.queue import Plan
from surge.train.budget import in_seconds, seconds_of

if TYPE_CHECKING:
    from surge.cli.reproduce import ReproduceCommand

OVERRIDES = ("epochs", "held_out", "size", "test_epochs")
"""What the command may change in the recipes of a table."""


def plans_of(command: ReproduceCommand) -> list[Plan]:
    """Return what to run: first what others build on, then the wanted rows."""
    names = list_recipes(command.table)
    if command.rows:
        names = [f"{command.table}-{row}" for row in dict.fromkeys(command.rows)]
    recipes = [get_recipe(name) for name in names]
    recipes += [get_recipe(name) for name in _swept(recipes, command) if name not in names]
    changes = changes_of(command, (*OVERRIDES, "short"))
    taught = dict.fromkeys(teacher_of(recipe) for recipe in recipes if recipe.distill)
    begun = dict.fromkeys(name for recipe in recipes for name in _starts(recipe))
    # A float network is trained in full however short those are that begin with it.
    taught |= dict.fromkeys(name for name in begun if get_recipe(name).method is None)
    stages = [get_recipe(name) for name in begun if name not in taught]
    others = [recipe for recipe in recipes if recipe.name not in {*taught, *begun}]
    given = _time_of_each(command, others)
    whole = {key: value for key, value in changes.items() if key != "epochs"}
    plans = [_plan(_teacher(name, changes), whole, command) for name in taught]
    plans += [_plan(_changed(recipe, changes), changes, command) for recipe in stages]
    for recipe in others:
        timed = {} if given is None or recipe.distill is None else {"budget": given}
        plans.append(_plan(_changed(recipe, changes), {**changes, **timed}, command))
    return plans


def _plan(recipe: Recipe, changes: dict[str, Any], command: ReproduceCommand) -> Plan:
    recipe = with_model(recipe, command.model)
    if recipe.name == TEACHER:
        recipe = with_backbone(recipe, command.backbone)
    return Plan(recipe, {key: value for key, value in changes.items() if key != "short"})


def _starts(recipe: Recipe) -> list[str]:
    """Return the recipes that one begins with, and those that these begin with, first of all."""
    if "start" not in recipe.model.options:
        return []
    name = start_of(recipe)
    return [*_starts(get_recipe(name)), name]


def _changed(recipe: Recipe, changes: dict[str, Any]) -> Recipe:
    """Return a recipe with the command's changes; the short form comes first."""
    recipe = shortened(recipe) if "short" in changes else recipe
    return overridden(recipe, {k: v for k, v in changes.items() if k != "short"})


def _teacher(name: str, changes: dict[str, Any]) -> Recipe:
    """Return the recipe of a teacher, who is trained in full however short its students are."""
    return _changed(get_recipe(name), {k: v for k, v in changes.items() if k != "epochs"})


def _swept(recipes: Sequence[Recipe], command: ReproduceCommand) -> list[str]:
    """Return the rows that --eta and --fixed-scale add to those with SURGE.

    A row's name carries the number, so that a run is the same however it was asked for. The eta
    that a row has anyway adds none.
    """
    able = [recipe for recipe in recipes if _is_adaptive(recipe)]
    names: list[str] = []
    for word, setting in SWEPT.items():
        values = dict.fromkeys(getattr(command, setting))
        if values and not able:
            raise ConfigError(
                f"--{setting.replace('_', '-')} is for rows with SURGE, an adaptive scale and no "
                "number in their name: none is among the chosen ones. Name one with --rows."
            )
        for recipe in able:
            assert recipe.surge is not None
            for value in values:
                if replace(recipe.surge, **{setting: value}) != recipe.surge:
                    names.append(with_number(recipe.name, word, value))
    return names


def _is_adaptive(recipe: Recipe) -> bool:
    adaptive = recipe.surge is not None and recipe.surge.fixed_scale is None
    return adaptive and not has_number(recipe.row)


def _time_of_each(command: ReproduceCommand, recipes: Sequence[Recipe]) -> str | None:
    """Return the time that schedules are fitted to, as results record it; None for none.

    ``recipes`` are those that no other one builds on.
    """
    if command.each is None:
        return None
    if not seconds_of(command.each, "--each"):
        raise ConfigError(f"--each {command.each} leaves no time to train.")
    if command.epochs is not None:
        raise ConfigError("--each and --epochs both say how long a run is: leave one of them out.")
    if command.jobs > 1 or command.together > 1:
        raise ConfigError(
            "--each gives every run the same seconds of the whole machine. Side by side, runs "
            "would share it, and a step would not take as long as was measured: leave --jobs and "
            "--together out. Teachers can be trained before, side by side and without --each."
        )
    for recipe in recipes:
        if recipe.train.schedule != "steps":
            raise ConfigError(
                f"{recipe.name} has a schedule of epochs: --each fits those of steps alone, which "
                "the students of GLUE have. Leave --each out; --budget says when to stop."
            )
    if not any(recipe.distill for recipe in recipes):
        raise ConfigError(
            "--each fits the schedules of students, and trains teachers in full: there is no "
            "student among the chosen rows. Name some with --rows, as mrpc-bit mrpc-bit-surge."
        )
    return in_seconds(command.each, "--each")
