"""Small runs for the tests of the training room: digits, a few images, a few epochs."""

from dataclasses import replace
from functools import lru_cache

import torch
from torch import nn

from surge.data import load_digits
from surge.models import registry
from surge.recipes import get_recipe
from surge.recipes.recipe import ModelSpec
from surge.train.loop import LoopOptions, Trainer
from surge.train.run import RunFolder
from tests.nets import no_pitfalls

CPU = torch.device("cpu")


@lru_cache
def digits(split, count):
    """The first digits of a part."""
    return load_digits(split).subset(torch.arange(count))


def small_sets(train=96, test=40):
    """Real digits, few of them."""
    return digits("train", train), digits("test", test)


def small_recipe(row="cnn-recu-surge", *, model=None, **train):
    """A row of the digits table for 3 epochs of 3 batches, with other settings if wanted."""
    recipe = get_recipe(f"digits-{row}")
    spec = replace(recipe.train, **{"epochs": 3, "batch": 32, "warmup": 1, **train})
    recipe = replace(recipe, train=spec)
    return recipe if model is None else replace(recipe, model=ModelSpec(model))


def make_trainer(path, recipe=None, sets=None, *, seed=0, world=None, criterion=None, **options):
    """A trainer on the CPU that writes a checkpoint after every epoch."""
    path.mkdir(parents=True, exist_ok=True)
    with no_pitfalls():
        return Trainer(
            recipe or small_recipe(),
            sets or small_sets(),
            seed=seed,
            device=CPU,
            folder=RunFolder(path),
            world=world,
            options=LoopOptions(**{"save_every": 0.0, **options}),
            criterion=criterion,
        )


def weights(trainer):
    """A copy of everything that the model holds."""
    return {name: tensor.clone() for name, tensor in trainer.parts.model.state_dict().items()}


def trained(path, *args, **kwargs):
    """Train to the end; return the final state and the rows."""
    trainer, rows = make_trainer(path, *args, **kwargs), []
    trainer.run(rows.append)
    return weights(trainer), rows


def without_norm(classes=10):
    """A network whose loss is the mean over images whatever the batch: nothing is shared.

    Biases keep sums of +-1 away from 0, where rounding would decide a sign.
    """
    return nn.Sequential(
        nn.Conv2d(1, 8, 3, padding=1),
        nn.Hardtanh(),
        nn.Conv2d(8, 8, 3, padding=1, stride=2),
        nn.Hardtanh(),
        nn.Flatten(),
        nn.Linear(128, 16),
        nn.Hardtanh(),
        nn.Linear(16, classes),
    )


def register_without_norm():
    """Make :func:`without_norm` known as a model, here and in processes that import this."""
    registry._BUILDERS["without_norm"] = without_norm


def with_dropout(classes=10):
    """The same with random numbers in every step."""
    *layers, last = without_norm(classes)
    return nn.Sequential(*layers, nn.Dropout(0.3), last)


def register_with_dropout():
    """Make :func:`with_dropout` known as a model."""
    registry._BUILDERS["with_dropout"] = with_dropout
