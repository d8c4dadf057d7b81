"""The state of a trainer in its checkpoints."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from surge.errors import CheckpointMismatchError
from surge.train import checkpoint

if TYPE_CHECKING:
    from surge.train.loop import Trainer


def load(trainer: Trainer) -> list[str]:
    """Take the state of the newest good checkpoint; return a sentence for each damaged one.

    Raises:
        CheckpointMismatchError: there is none, it does not fit, or processes found different ones.
    """
    folder, recipe = trainer.folder.checkpoints, trainer.recipe
    state, passed = _newest(trainer)
    learned = trainer.train_step.learned
    try:
        trainer.parts.model.load_state_dict(state["model"])
        _load_optimizer(trainer.parts.optimizer, state["optimizer"])
        if learned is not None:
            learned.load_state_dict(state["learned"])
    except (RuntimeError, ValueError, KeyError) as error:
        raise CheckpointMismatchError(
            f"The checkpoint in {folder} does not fit the model of {recipe.name}: {error}"
        ) from error
    trainer.epoch, trainer.seconds = state["epoch"], state["seconds"]
    trainer.best, trainer.best_epoch = state["best"], state["best_epoch"]
    trainer.last = state["last"]
    trainer.scores, trainer.best_scores = state.get("scores", ({}, {}))
    if state.get("midway"):
        trainer.noted = {**state["midway"], "model": state["model"]}
    return passed


def _newest(trainer: Trainer) -> tuple[dict[str, Any], list[str]]:
    """Return the newest good checkpoint, which must be the same one in all processes."""
    folder = trainer.folder.checkpoints
    state: dict[str, Any] = {}
    passed: list[str] = []
    error = None
    try:
        state, passed = checkpoint.load_newest(folder, trainer.recipe.name, trainer.device)
    except CheckpointMismatchError as caught:
        error = caught  # the others are told before it is raised
    mine = (state.get("epoch"), (state.get("midway") or {}).get("steps", 0), state.get("seconds"))
    said = trainer.world.told((mine, passed))
    if error is not None:
        raise error
    passed = list(dict.fromkeys(sentence for _, sentences in said for sentence in sentences))
    if len({found for found, _ in said}) > 1:
        found = [_described(rank, *which) for rank, (which, _) in enumerate(said)]
        raise CheckpointMismatchError(
            f"Processes found different checkpoints in {folder}: {', '.join(found)}. "
            f"{''.join(f'{sentence} ' for sentence in passed)}All must see the same files: is the "
            "folder shared by all machines?"
        )
    return state, passed


def _described(rank: int, epoch: int | None, steps: int, seconds: float | None) -> str:
    if epoch is None:
        return f"rank {rank} none"
    inside = f" and {steps} steps" if steps else ""
    return f"rank {rank} that after epoch {epoch}{inside} ({seconds:.2f} s)"


OWN = ("lr", "fused", "foreach", "capturable")
"""What an optimizer has by its device, whatever a checkpoint says."""


def _load_optimizer(optimizer: torch.optim.Optimizer, state: dict[str, Any]) -> None:
    """Load a state that may come from another kind of device."""
    own = [{key: group[key] for key in OWN if key in group} for group in optimizer.param_groups]
    groups = [{**saved, **kept} for saved, kept in zip(state["param_groups"], own, strict=True)]
    optimizer.load_state_dict({**state, "param_groups": groups})
    for group, kept in zip(optimizer.param_groups, own, strict=True):
        group.update(kept)  # the learning rate stays the tensor that a captured step reads
    for parameter, held in optimizer.state.items():
        for key, value in held.items():
            if key != "step" and isinstance(value, Tensor) and value.shape == parameter.shape:
                # In the parameter's layout: fused optimizers go through memory as it lies.
                held[key] = torch.empty_like(parameter, dtype=value.dtype).copy_(value)


def save(trainer: Trainer, noted: dict[str, Any] | None) -> None:
    """Write a checkpoint of the epochs done so far, and of the steps ``noted``."""
    learned = trainer.train_step.learned
    state = {
        "recipe": trainer.recipe.name,
        "model": trainer.parts.model.state_dict(),
        "optimizer": trainer.parts.optimizer.state_dict(),
        "seconds": trainer.seconds,
        "best": trainer.best,
        "best_epoch": trainer.best_epoch,
        "last": trainer.last,
        "scores": (trainer.scores, trainer.best_scores),
        "midway": noted,
        **({} if learned is None else {"learned": learned.state_dict()}),
    }
    checkpoint.save(trainer.folder.checkpoints, state, trainer.epoch)
