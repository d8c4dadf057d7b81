"""A schedule fitted to a time: measure the first steps, then choose how many there will be."""

import gc
import math
import re
import tempfile
import time
from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

import torch

from surge.errors import ConfigError
from surge.recipes.recipe import Recipe
from surge.train.loop import LoopOptions, Trainer
from surge.train.run import RunFolder

WARM = 5
TIMED = 20
RESERVE = 0.98
TRIAL = 0.1
"""Share of the time after which no further step is warmed up with, or timed."""


def seconds_of(text: str, option: str = "--budget") -> float:
    """Return the seconds in ``90s``, ``9m`` or ``2h``.

    >>> seconds_of("9m")
    540.0
    """
    found = re.fullmatch(r"(\d+(?:\.\d+)?)([smh]?)", text.strip())
    if not found:
        raise ConfigError(f'{option} "{text}" is not a time like 90s, 9m or 2h.')
    return float(found[1]) * {"": 1, "s": 1, "m": 60, "h": 3600}[found[2]]


def in_seconds(text: str, option: str = "--budget") -> str:
    """Return a time as results record it: the same words for the same time.

    >>> in_seconds("15m"), in_seconds("900")
    ('900s', '900s')
    """
    return f"{seconds_of(text, option):.12g}s"


def as_begun(recipe: Recipe, folder: Path) -> Recipe:
    """Return a recipe with the steps that the run in a folder was fitted with when it began."""
    held = RunFolder.open(folder)[1].train
    return replace(recipe, train=replace(recipe.train, steps=held.steps, epochs=held.epochs))


def fitted(
    recipe: Recipe,
    sets: Any,
    seconds: float,
    *,
    seed: int,
    device: torch.device,
    options: LoopOptions,
) -> Recipe:
    """Return the recipe with as many steps as fit into so many seconds of training and testing.

    A trial run does a few steps and a test, and is thrown away: its time does not count, and
    where steps are slow it does fewer of them. The
    number of steps becomes part of the recipe, so that the run repeats and resumes as any other.
    """
    with tempfile.TemporaryDirectory() as folder:
        trainer = Trainer(
            recipe,
            sets,
            seed=seed,
            device=device,
            folder=RunFolder(Path(folder)),
            options=replace(options, deadline=None),
        )
        step, test = _measure(trainer, device, TRIAL * seconds)
        epoch = len(trainer.train_loader)
        del trainer
    gc.collect()
    apart = epoch * recipe.train.test_epochs
    every = recipe.train.test_every or apart
    # The last epoch ends with a test, however long ago the one before was.
    spare = RESERVE * seconds - (test if recipe.train.test_epochs > 1 else 0.0)
    steps = max(1, int(spare / (step + test * (1 / every + 1 / apart))))
    train = replace(recipe.train, steps=steps, epochs=math.ceil(steps / epoch))
    return replace(recipe, train=train)


def _measure(trainer: Trainer, device: torch.device, most: float) -> tuple[float, float]:
    """Return the seconds of a step and of a test, once both are warm.

    A step or a test that takes longer than ``most`` seconds is not repeated.
    """
    trainer.begin_epoch()
    batches = list(islice(trainer.batches(), WARM + TIMED))
    # Full batches alone: the last of an epoch is of another size.
    full = [pair for pair in batches if len(pair[0]) == len(batches[0][0])]
    warm, timed = full[:WARM], full[WARM:] or full

    def seconds(actions: Iterable[Callable[[], object]]) -> float:
        """Return what one of the actions takes."""
        _wait(device)
        begun, done = time.monotonic(), 0
        for action in actions:
            action()
            done += 1
            if time.monotonic() - begun > most:
                break
        _wait(device)
        return (time.monotonic() - begun) / done

    def steps(pairs: list[Any]) -> Iterable[Callable[[], object]]:
        return (partial(trainer.step, part, weight) for part, weight in pairs)

    seconds(steps(warm))
    step = seconds(steps(timed))
    test = seconds([trainer.evaluate])
    return step, test if test > most else seconds([trainer.evaluate])


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
