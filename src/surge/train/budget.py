"""A schedule fitted to a time: measure the first steps, then choose how many there will be."""

import gc
import math
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any

import torch

from surge.recipes.recipe import Recipe
from surge.train.loop import LoopOptions, Trainer
from surge.train.run import RunFolder

WARM = 5
TIMED = 20
RESERVE = 0.98


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

    A trial run does a few steps and one test, and is thrown away: its time does not count. The
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
        step, test = _measure(trainer, device)
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


def _measure(trainer: Trainer, device: torch.device) -> tuple[float, float]:
    """Return the seconds of a step and of a test, once both are warm."""

    def clock(action: Callable[[], object]) -> float:
        _wait(device)
        start = time.monotonic()
        action()
        _wait(device)
        return time.monotonic() - start

    trainer.begin_epoch()
    batches = list(islice(trainer.batches(), WARM + TIMED))
    # Full batches alone: the last of an epoch is of another size.
    full = [pair for pair in batches if len(pair[0]) == len(batches[0][0])]
    warm, timed = full[:WARM], full[WARM:] or full

    def steps(pairs: list[Any]) -> None:
        for part, weight in pairs:
            trainer.step(part, weight)

    steps(warm)
    step = clock(lambda: steps(timed)) / len(timed)
    trainer.evaluate()
    return step, clock(trainer.evaluate)


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
