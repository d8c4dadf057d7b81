"""After a run diverged: find the layer where it began.

Once a loss is not finite, one backward spreads it to every weight, and nothing that is left tells
where it came from. Runs are deterministic, so the steps since the last checkpoint are done again,
eagerly and looking at every layer.
"""

import time
from dataclasses import replace
from typing import TYPE_CHECKING

from surge.train import mid_epoch
from surge.train.watch import (
    BitWatch,
    DivergedError,
    Sentinel,
    first_bad_gradient,
    first_bad_state,
)

if TYPE_CHECKING:
    from surge.train.loop import Trainer

PATIENCE = 120.0
"""Seconds after which a search ends without an answer."""


def diverged_error(trainer: "Trainer") -> DivergedError:
    """Return an error that says where a run diverged and what is left of it."""
    folder = trainer.folder
    where = first_bad_layer(trainer)
    what = f"{where} is not finite" if where else _known(trainer)
    kept = f"The last good checkpoint is kept in {folder.checkpoints}."
    return DivergedError(
        f"Training diverged in epoch {trainer.epoch} of {trainer.recipe.name}: {what}. "
        f"{kept if folder.begun else 'No checkpoint was written yet.'}"
    )


def _known(trainer: "Trainer") -> str:
    """Say what is certain where the layer is not known."""
    why = "was not found" if trainer.world.size == 1 else "is searched for in one process only"
    state = first_bad_state(trainer.parts.model)
    by_now = f"; by now {state} is not finite, too" if state else ""
    return f"the loss is not finite; where that began {why}{by_now}"


def first_bad_layer(diverged: "Trainer") -> str | None:
    """Name the first thing that was not finite up to the present epoch, or None if not found.

    Where every step was finite, the test after them is looked at.
    The search has a trainer of its own. Of several processes only all together could repeat the
    run: then there is no answer.
    """
    if diverged.world.size > 1:
        return None
    again = type(diverged)(
        diverged.recipe,
        diverged.sets,
        seed=diverged.seed,
        device=diverged.device,
        folder=diverged.folder,
        options=replace(diverged.options, compiled=False, captured=False, lean=False),
        criterion=diverged.criterion,
    )
    if diverged.folder.begun:
        again.load()
    give_up = time.monotonic() + PATIENCE
    while again.epoch <= diverged.epoch and time.monotonic() < give_up:
        found = _search_epoch(again, give_up)
        if found is not None:
            return found
        again.epoch += 1
    again.epoch = diverged.epoch
    with Sentinel(again.parts.model) as sentinel:
        again.evaluate()
    return f"{sentinel.found} (epoch {again.epoch}, test)" if sentinel.found else None


def _search_epoch(trainer: "Trainer", give_up: float) -> str | None:
    model = trainer.parts.model
    trainer.begin_epoch()
    done = mid_epoch.take_up(trainer, BitWatch(model), trainer.noted) if trainer.noted else 0
    trainer.noted = None
    for count, (number, part, numbers) in enumerate(trainer.steps(done), start=done + 1):
        with Sentinel(model) as sentinel:
            trainer.train_step(part, *numbers)
        if trainer.guide is not None:
            trainer.guide.after_step(number, part)
        found = sentinel.found or first_bad_gradient(model) or first_bad_state(model)
        if found is not None:
            return f"{found} (epoch {trainer.epoch}, step {count})"
        if time.monotonic() > give_up:
            return None
    trainer.recalibrate()
    return None
