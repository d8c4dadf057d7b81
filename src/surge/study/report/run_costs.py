"""What the networks of some recipes store and compute, layer by layer."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import torch

from surge.errors import SurgeError
from surge.models.bert import BertClassifier
from surge.recipes.recipe import Recipe
from surge.summary import Summary, summary
from surge.train.build import build_network

SHAPES = {"digits": (1, 1, 8, 8), "cifar10": (1, 3, 32, 32)}
"""One sample of each data set whose images are seen as they are stored."""


def costs_of(recipes: Sequence[Recipe]) -> dict[str, Summary | str]:
    """Return what each different network costs, or why that is not known here."""
    found: dict[str, Summary | str] = {}
    for recipe in recipes:
        name = f"{recipe.model.name}, {recipe.method.name if recipe.method else 'float'}"
        if name not in found:
            found[name] = _cost(recipe)
    return found


def _example(recipe: Recipe) -> torch.Tensor:
    """Return one image of the size that the network sees, or one sentence."""
    data = recipe.data
    if data.length is not None:  # words, the sentence they are of, and which are there
        rows = [*torch.zeros(2, data.length), torch.ones(data.length)]
        return torch.stack(rows)[None].long()
    return torch.zeros(SHAPES.get(data.name) or (1, 3, data.size or 224, data.size or 224))


def _alone(recipe: Recipe) -> Recipe:
    """Return a recipe whose network is built without SURGE, a teacher or an earlier run."""
    options = {k: v for k, v in recipe.model.options.items() if k != "start"}
    return replace(recipe, surge=None, distill=None, model=replace(recipe.model, options=options))


def _cost(recipe: Recipe) -> Summary | str:
    if recipe.data.name == "voc":
        return "Not counted here: `surge reproduce voc --table-only` counts detectors."
    pretrained = recipe.model.options.get("path")
    if recipe.data.length is not None and not Path(str(pretrained), "config.json").exists():
        return f"Not counted: {pretrained or 'the BERT of this run'} is not at hand."
    example = _example(recipe)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            model, _ = build_network(_alone(recipe), 0, example)
        if isinstance(model, BertClassifier):  # which runs its layers apart, and so no attention
            return summary(model.classifier, example[:, 0])
        return summary(model, example)
    except SurgeError as error:  # a model of another version
        return f"Not counted: {error}"
