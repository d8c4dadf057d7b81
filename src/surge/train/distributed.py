"""Processes of one run: torchrun starts them, DistributedDataParallel joins them."""

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel


@dataclass(frozen=True)
class World:
    """This process among all processes of the run."""

    rank: int = 0
    size: int = 1

    @property
    def leads(self) -> bool:
        """Whether this process writes files and talks."""
        return self.rank == 0

    def any(self, flag: bool, device: torch.device) -> bool:
        """Return whether the flag is set in any process, the same answer in all of them."""
        if self.size == 1:
            return flag
        flags = torch.tensor(float(flag), device=device)
        torch.distributed.all_reduce(flags)
        return bool(flags > 0)

    def gathered(self, tensor: Tensor, device: torch.device) -> list[Tensor]:
        """Return the tensors of all processes, by rank; all must have the same shape."""
        if self.size == 1:
            return [tensor]
        sent = tensor.to(device)
        received = [torch.empty_like(sent) for _ in range(self.size)]
        torch.distributed.all_gather(received, sent)
        return [other.to(tensor.device) for other in received]

    def told(self, words: object) -> list[Any]:
        """Return what all processes say, by rank."""
        if self.size == 1:
            return [words]
        said: list[Any] = [None] * self.size
        torch.distributed.all_gather_object(said, words)
        return said

    def share_norms(self, model: nn.Module) -> None:
        """Give all processes the first one's statistics of norms, which checkpoints hold."""
        for buffer in model.buffers() if self.size > 1 else ():
            if buffer.is_floating_point():
                torch.distributed.broadcast(buffer, 0)


RESTARTS = ("TORCHELASTIC_RESTART_COUNT", "SLURM_RESTART_COUNT")
"""Variables that count how often torchrun or Slurm started the same command anew."""


def restarted(environ: Mapping[str, str]) -> bool:
    """Return whether this is a command that was started before and was stopped from outside.

    >>> restarted({"TORCHELASTIC_RESTART_COUNT": "1"}), restarted({"SLURM_RESTART_COUNT": "0"})
    (True, False)
    """
    return any(
        environ.get(name, "0").isdecimal() and int(environ.get(name, "0")) for name in RESTARTS
    )


def job_of(environ: Mapping[str, str]) -> str | None:
    """Return the name of the job that torchrun belongs to, the same after a restart; None: unknown.

    Restarts alone do not tell: an agent counts those of its own processes, and a new one none.

    >>> job_of({"TORCHELASTIC_RUN_ID": "r18"}), job_of({"TORCHELASTIC_RUN_ID": "none"})
    ('r18', None)
    """
    name = environ.get("TORCHELASTIC_RUN_ID")
    if name == "none" and "SLURM_JOB_ID" in environ:  # torchrun's word for no --rdzv-id
        return f"slurm-{environ['SLURM_JOB_ID']}.{environ.get('SLURM_STEP_ID', '')}"
    return None if name == "none" else name or None


def process_count(environ: Mapping[str, str]) -> int:
    """Return how many processes torchrun started; 1 without it."""
    return int(environ["WORLD_SIZE"]) if {"RANK", "WORLD_SIZE"} <= environ.keys() else 1


@contextmanager
def joined(device: torch.device) -> Iterator[World]:
    """Join the other processes if torchrun started us, and leave at the end."""
    if "RANK" not in os.environ or "WORLD_SIZE" not in os.environ:
        yield World()
        return
    if device.type == "cuda":
        torch.cuda.set_device(device)
    torch.distributed.init_process_group("nccl" if device.type == "cuda" else "gloo")
    try:
        yield World(torch.distributed.get_rank(), torch.distributed.get_world_size())
    finally:
        torch.distributed.destroy_process_group()


def wrapped(
    model: nn.Module, world: World, device: torch.device, *, compiled: bool = False
) -> nn.Module:
    """Return the model as is, or inside DistributedDataParallel.

    There it is compiled by itself: the exchange of gradients does not compile in one graph with
    the rest of a step.
    """
    if world.size == 1:
        return model
    inner = cast(nn.Module, torch.compile(model, fullgraph=True)) if compiled else model
    return DistributedDataParallel(
        inner, device_ids=[device.index] if device.type == "cuda" else None
    )
