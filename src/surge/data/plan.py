"""The random decisions of one epoch: order, crops and flips, drawn before it starts.

They come from a CPU generator seeded by (seed, epoch) alone. So two methods trained with one
seed see the same images in the same order on any device and any number of processes, and a
run resumed in the middle of an epoch continues as if it had not stopped.
"""

import hashlib
from dataclasses import dataclass

import torch
from torch import Tensor

from surge.errors import ConfigError


@dataclass(frozen=True, eq=False)
class EpochPlan:
    """What happens at each position of an epoch."""

    permutation: Tensor
    """int64 ``[n]``: which image stands at this position."""
    offsets: Tensor
    """int64 ``[n, 2]``: row and column where its crop begins, 0 to ``2 * padding``."""
    flips: Tensor
    """bool ``[n]``: whether it is mirrored."""

    def __len__(self) -> int:
        return len(self.permutation)

    def to(self, device: torch.device | str) -> "EpochPlan":
        """Return the plan on a device: one copy per epoch instead of one per batch."""
        return EpochPlan(
            self.permutation.to(device), self.offsets.to(device), self.flips.to(device)
        )

    def part(self, start: int, stop: int) -> "EpochPlan":
        """Return positions ``start`` to ``stop`` as a view."""
        window = slice(start, stop)
        return EpochPlan(self.permutation[window], self.offsets[window], self.flips[window])


def epoch_plan(
    count: int, epoch: int, seed: int, *, padding: int = 4, shuffle: bool = True
) -> EpochPlan:
    """Draw the plan of one epoch over ``count`` images.

    Crops and flips belong to positions, not to images. They do not depend on ``shuffle``, nor
    does the order depend on ``padding``.
    """
    if count < 1:
        raise ConfigError(f"An epoch needs at least one image, got count={count}.")
    if epoch < 0:
        raise ConfigError(f"epoch={epoch} is not accepted: epochs count from 0.")
    generator = torch.Generator().manual_seed(_mix(seed, epoch))
    permutation = torch.randperm(count, generator=generator)
    flips = torch.randint(0, 2, (count,), generator=generator).bool()
    offsets = torch.randint(0, 2 * padding + 1, (count, 2), generator=generator)
    return EpochPlan(permutation if shuffle else torch.arange(count), offsets, flips)


def _mix(seed: int, epoch: int) -> int:
    """Hash both numbers into one: torch's CPU generator looks at the low 32 bits only.

    A sum would make epoch 1 of seed 0 the same as epoch 0 of seed 1.
    """
    digest = hashlib.sha256(f"epoch {epoch} of seed {seed}".encode()).digest()
    return int.from_bytes(digest[:4], "little")
