"""What changes from epoch to epoch: the learning rate, and the seed of the steps."""

import hashlib
import math

from surge.recipes.recipe import TrainSpec

WARM_SHARE = 0.1
"""Share of all steps in which the learning rate of the schedule ``steps`` climbs."""

DROPS = (0.3, 0.6, 0.9)
"""Shares of all epochs after which the schedule ``drops`` divides by ten."""


LATE = (8 / 12, 11 / 12)
"""The same for the schedule ``detector``: the 9th and the 12th of twelve epochs begin lower."""
COLD = 1e-3
"""Share of the learning rate with which a warm-up by steps begins."""


def learning_rate(spec: TrainSpec, epoch: int) -> float:
    """Return the learning rate of ``epoch`` (from 0), as the authors of ReCU step it.

    The warm-up climbs to the full rate in its last epoch, and the cosine starts from there:
    with 5 warm-up epochs of 600, lr(e) = lr/2 (1 + cos(pi (e - 4) / 596)) for e >= 4.

    >>> [round(learning_rate(TrainSpec(), e), 4) for e in (0, 4, 302, 599)]
    [0.02, 0.1, 0.05, 0.0]
    """
    if epoch < spec.warmup:
        return spec.lr * (epoch + 1) / spec.warmup
    start = max(spec.warmup - 1, 0)
    progress = (epoch - start) / max(spec.epochs - start, 1)
    if spec.schedule == "cosine":
        return spec.lr * 0.5 * (1 + math.cos(math.pi * progress))
    if spec.schedule == "linear":
        return spec.lr * (1 - progress)
    if spec.schedule == "drops":
        return spec.lr * 0.1 ** sum(epoch >= share * spec.epochs for share in DROPS)
    if spec.schedule == "detector":
        return spec.lr * 0.1 ** sum(epoch >= int(share * spec.epochs) for share in LATE)
    return spec.lr


def step_rate(spec: TrainSpec, step: int, steps: int) -> float:
    """Return the learning rate of ``step`` (from 0) of ``steps``, as BertAdam sets it.

    From 0 up over the first tenth, then straight down, which would reach 0 one step after the last.

    >>> [round(step_rate(TrainSpec(lr=1.0), s, 20), 3) for s in (0, 1, 2, 11, 19)]
    [0.0, 0.5, 1.0, 0.5, 0.056]
    """
    done = step / steps
    return spec.lr * (done / WARM_SHARE if done < WARM_SHARE else (1 - done) / (1 - WARM_SHARE))


def rate_at(spec: TrainSpec, step: int, rate: float, epoch: int) -> float | None:
    """Return the learning rate of ``step`` where it is not just its epoch's ``rate``, else None.

    ``epoch`` is the number of steps in one. A warm-up by steps takes at most a tenth of them all.

    >>> spec = TrainSpec(epochs=12, schedule="detector", warmup=0, warmup_steps=200)
    >>> [round(rate_at(spec, step, 1.0, 500) or 0.0, 4) for step in (0, 100, 199, 200, 201)]
    [0.001, 0.5005, 0.995, 1.0, 0.0]
    """
    steps = spec.steps or spec.epochs * epoch
    if spec.schedule == "steps":
        return step_rate(spec, step, steps)
    warm = min(spec.warmup_steps, steps // 10)
    if not warm or step > warm:
        return None
    return rate * (COLD + (1 - COLD) * step / warm)


def step_seed(seed: int, epoch: int, rank: int) -> int:
    """Return the seed of the random numbers that the steps of an epoch draw on one rank.

    Dropout, drawn weights and a detector's choice of regions come from there; the noise control has
    its own. A function of the epoch, so that nothing needs to be saved between epochs.
    """
    text = f"steps of epoch {epoch} of seed {seed} on rank {rank}"
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:4], "little")


def is_tested(spec: TrainSpec, epoch: int) -> bool:
    """Return whether an epoch, counted from 0, ends with a test; the last always does.

    >>> [is_tested(TrainSpec(epochs=8, test_epochs=3), epoch) for epoch in range(8)]
    [False, False, True, False, False, True, False, True]
    """
    return (epoch + 1) % spec.test_epochs == 0 or epoch + 1 >= spec.epochs


def is_tested_midway(spec: TrainSpec, done: int, epoch: int) -> bool:
    """Return whether a test follows after ``done`` steps of a run, within an epoch of ``epoch``.

    >>> [done for done in range(1, 13) if is_tested_midway(TrainSpec(test_every=2), done, 6)]
    [2, 4, 8, 10]
    """
    last = done % epoch == 0 or done == spec.steps
    return spec.test_every is not None and done % spec.test_every == 0 and not last
