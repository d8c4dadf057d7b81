"""What the networks of some recipes store and compute, layer by layer."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import replace

import torch

from surge.errors import SurgeError
from surge.recipes.recipe import Recipe
from surge.summary import Summary, summary
from surge.train.build import build_network

SHAPES = {"digits": (1, 1, 8, 8), "cifar10": (1, 3, 32, 32)}
"""One sample of each data set."""


def costs_of(recipes: Sequence[Recipe]) -> dict[str, Summary | str]:
    """Return what each different network costs, or why that is not known here."""
    found: dict[str, Summary | str] = {}
    for recipe in recipes:
        name = f"{recipe.model.name}, {recipe.method.name if recipe.method else 'float'}"
        if name not in found:
            found[name] = _cost(recipe)
    return found


def _cost(recipe: Recipe) -> Summary | str:
    shape = SHAPES.get(recipe.data.name)
    if shape is None:
        return f"Not counted: the network of {recipe.name} cannot be built without its model files."
    example = torch.zeros(shape)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            model, _ = build_network(replace(recipe, surge=None), 0, example)
        return summary(model, example)
    except SurgeError as error:  # a model of another version
        return f"Not counted: {error}"
