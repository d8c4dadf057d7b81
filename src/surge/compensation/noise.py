"""The random numbers of the noise control: a function of counters, not of torch's generator.

That one also feeds dropout and whatever else a step draws, so noise from there would change those
in a run that is compared with another; and a ``torch.Generator`` of one's own does not compile in
one graph. Here a number is a hash of (key, draw, rank, place). The key and the count of draws are
buffers: checkpoints hold them, a CUDA graph advances them when it is replayed, and eager, compiled
and captured steps see the same noise.
"""

import math

import torch
from torch import Tensor, nn

from surge.ranks import this_rank

BITS = 32


def mixed(x: Tensor) -> Tensor:
    """Hash whole numbers below 2^32 one to one, with the last steps of MurmurHash3.

    Factors above 2^31 are written as negative numbers, so that no product overflows 64 bits.
    """
    x = x ^ (x >> 16)
    x = (x * (0x85EBCA6B - 2**BITS)) & (2**BITS - 1)
    x = x ^ (x >> 13)
    x = (x * (0xC2B2AE35 - 2**BITS)) & (2**BITS - 1)
    return x ^ (x >> 16)


def normal(words: Tensor, like: Tensor) -> Tensor:
    """Return float32 numbers from a standard normal distribution, laid out as ``like`` is.

    Box-Muller: sqrt(-2 ln u) cos(2 pi v), u and v from two hashes of an element's place. ``words``
    are three numbers that say which of many such tensors it is.
    """
    place = mixed(torch.arange(like.numel(), device=like.device) ^ words[0])
    u = (mixed(place ^ words[1]).float() + 0.5) / 2**BITS
    v = mixed(place ^ words[2]).float() / 2**BITS
    drawn = (-2 * u.log()).sqrt() * (2 * math.pi * v).cos()
    return torch.empty_like(like, dtype=torch.float32).copy_(drawn.view(like.shape))


@torch.library.custom_op("surge::noise_words", mutates_args=())
def words(key: Tensor, draws: Tensor, rank: int) -> Tensor:
    """Return what :func:`normal` needs for one draw of one process.

    Closed to the compiler: what it can look into it may compute once more in the backward, where
    ``draws`` has moved on.
    """
    return mixed(mixed(mixed(key) ^ draws) ^ rank)


@words.register_fake
def _(key: Tensor, draws: Tensor, rank: int) -> Tensor:
    return torch.empty_like(key)


class Source(nn.Module):
    """Where one layer's noise comes from: a key, and how often it was drawn from."""

    key: Tensor
    draws: Tensor

    def __init__(self, generator: torch.Generator, device: torch.device) -> None:
        """Draw the key."""
        super().__init__()
        key = torch.randint(2**BITS, (3,), generator=generator, device="cpu")
        self.register_buffer("key", key.to(device))
        self.register_buffer("draws", torch.zeros((), dtype=torch.int64, device=device))

    def draw(self) -> Tensor:
        """Count one draw, and return its words."""
        self.draws.add_(1)
        drawn: Tensor = words(self.key, self.draws, this_rank())
        return drawn
