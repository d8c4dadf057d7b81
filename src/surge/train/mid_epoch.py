"""Checkpoints inside an epoch: what continuing takes besides the model and the optimizer."""

import time
from typing import TYPE_CHECKING, Any

import torch

from surge.train.watch import BitWatch

if TYPE_CHECKING:
    from surge.train.loop import Trainer


GRACE = 30.0
"""Seconds that an epoch may go on after the deadline, before a run stops inside it."""


def keep(trainer: "Trainer", watch: BitWatch, steps: int) -> None:
    """Write a checkpoint where one is due inside an epoch; a run that diverged ends there."""
    every = trainer.options.save_steps
    if every and steps % every == 0 and steps < len(trainer.train_loader):
        _save(trainer, watch, steps)


def stops(trainer: "Trainer", watch: BitWatch, steps: int) -> bool:
    """Return whether a run stops inside an epoch, with a checkpoint, since its end is too far.

    Several processes would have to agree after every step: they stop between epochs.
    """
    now = time.monotonic()
    if trainer.world.size > 1 or not trainer.options.is_over(now):
        return False
    trainer.over_since = min(trainer.over_since, now)
    far = now - trainer.over_since >= GRACE and steps < len(trainer.train_loader)
    if far:
        _save(trainer, watch, steps)
    return far


def _save(trainer: "Trainer", watch: BitWatch, steps: int) -> None:
    noted = note(trainer, watch, steps)
    trainer.check_finite(float(noted["sums"][0]))  # all processes see the same sum
    trainer.save(noted)


def note(trainer: "Trainer", watch: BitWatch, steps: int) -> dict[str, Any]:
    """Describe an epoch of which ``steps`` are done; all processes must call this together."""
    world, device = trainer.world, trainer.device
    sums = trainer.train_step.sums.values.clone()
    if world.size > 1:
        torch.distributed.all_reduce(sums)
    on_gpu = device.type == "cuda"
    return {
        "steps": steps,
        "seconds": time.monotonic() - trainer.begun,
        "sums": sums,
        "bits": list(watch.bits),
        "recorded": {} if trainer.recorder is None else trainer.recorder.bits,
        "random": world.gathered(torch.get_rng_state(), device),
        "cuda": world.gathered(torch.cuda.get_rng_state(device), device) if on_gpu else [],
    }


def take_up(trainer: "Trainer", watch: BitWatch, noted: dict[str, Any]) -> int:
    """Put a trainer whose epoch has just begun to where it was; return the steps done.

    The model's state is loaded once more: what a method renews at the start of an epoch must not be
    renewed in its middle. Every process gets its own random numbers back; one that was not there
    keeps those with which the epoch began.
    """
    trainer.begun -= noted["seconds"]
    trainer.parts.model.load_state_dict(noted["model"])
    sums = trainer.train_step.sums.values
    # The other processes' shares are in the first one's.
    sums.copy_(noted["sums"] if trainer.world.leads else torch.zeros_like(sums))
    watch.bits = [bits.to(trainer.device) for bits in noted["bits"]]
    if trainer.recorder is not None:  # the bits with which the epoch began, or none: no flips then
        recorded = noted.get("recorded", {})
        trainer.recorder.bits = {name: bits.to(trainer.device) for name, bits in recorded.items()}
    if trainer.options.shared:
        return int(noted["steps"])
    rank = trainer.world.rank
    if rank < len(noted["random"]):
        torch.set_rng_state(noted["random"][rank].cpu())
    if rank < len(noted["cuda"]) and trainer.device.type == "cuda":
        torch.cuda.set_rng_state(noted["cuda"][rank].cpu(), trainer.device)
    return int(noted["steps"])
