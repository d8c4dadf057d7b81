"""One typed object per table row; every module here with ``RECIPES`` is found by itself."""

import importlib
import pkgutil
from dataclasses import replace

from surge.data.glue import TASKS
from surge.errors import ConfigError, did_you_mean
from surge.recipes.recipe import (
    DataSpec,
    DistillSpec,
    MethodSpec,
    ModelSpec,
    Recipe,
    TrainSpec,
    with_surge,
)
from surge.recipes.variants import varied

__all__ = [
    "DataSpec",
    "DistillSpec",
    "MethodSpec",
    "ModelSpec",
    "Recipe",
    "TrainSpec",
    "get_recipe",
    "list_recipes",
    "tables",
    "with_surge",
]


def _all() -> dict[str, Recipe]:
    found: dict[str, Recipe] = {}
    for info in pkgutil.iter_modules(__path__):
        module = importlib.import_module(f"{__name__}.{info.name}")
        for recipe in getattr(module, "RECIPES", ()):
            found[recipe.name] = recipe
    return found


def list_recipes(table: str | None = None) -> list[str]:
    """Return all recipe names, or those of one table, in table order."""
    recipes = _all()
    if table is not None and table not in {r.table for r in recipes.values()}:
        known = tables()
        raise ConfigError(
            f'There is no table "{table}".{did_you_mean(table, known)} Tables: {", ".join(known)}.'
        )
    return [name for name, recipe in recipes.items() if table in (None, recipe.table)]


def tables() -> list[str]:
    """Return the names of all tables."""
    return sorted({recipe.table for recipe in _all().values()})


def get_recipe(name: str) -> Recipe:
    """Return a recipe by name; any binary row also exists as ``<row>-surge-<variant>``.

    >>> get_recipe("cifar10-resnet20-recu-surge-tied").surge.auxiliary
    'tied'
    """
    recipes = _all()
    if name in recipes:
        return recipes[name]
    base, found, variant = name.partition("-surge-")
    if found and base in recipes:
        made = with_surge(recipes[base], variant)
        own = recipes.get(f"{base}-surge") or _first_with_surge(made.table)
        if own is None or own.surge is None:
            return made
        return replace(made, surge=varied(own.surge, variant))
    raise ConfigError(
        f'There is no recipe "{name}".{did_you_mean(name, recipes)} '
        "List them with: surge train --list"
    )


def _first_with_surge(table: str) -> Recipe | None:
    """Return the first row of a table with SURGE as the paper has it there, if any has."""
    mine = (r for r in _all().values() if r.table == table and r.row.endswith("-surge"))
    return next(mine, None)


def overridden(recipe: Recipe, changes: dict[str, object]) -> Recipe:
    """Return the recipe with some fields of its training, data, SURGE or teacher replaced."""
    if changes.get("size") is not None and recipe.data.size is None:
        raise ConfigError(f"{recipe.name} sees whole inputs: it has no size to change (--size).")
    fixed = changes.get("fixed_scale", recipe.surge and recipe.surge.fixed_scale)
    if fixed is not None and changes.get("eta") is not None:
        raise ConfigError(f"{recipe.name} has a fixed scale, which no eta changes (--eta).")
    text, boxes = recipe.data.length is not None, recipe.data.name == "voc"
    deaf = {
        "label_smoothing": text or boxes or recipe.distill is not None,
        "teacher_dropout": not text,
        "scores": not text or bool(TASKS[recipe.data.name].labels),
        "sync_norm": boxes,
    }
    for name, ignored in deaf.items():
        if ignored and changes.get(name):
            option = name.replace("_", "-")
            raise ConfigError(f"{recipe.name} has no setting {name}: --{option} changes nothing.")
    for part in ("train", "data", "surge", "distill"):
        held = getattr(recipe, part)
        if held is None:
            continue
        fields = {k: v for k, v in changes.items() if k in held.__dataclass_fields__}
        if fields:
            recipe = replace(recipe, **{part: replace(held, **fields)})
            changes = {k: v for k, v in changes.items() if k not in fields}
    if changes:
        raise ConfigError(f"{recipe.name} has no setting {', '.join(sorted(changes))}.")
    return recipe
