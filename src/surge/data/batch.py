"""A batch of images that have different sizes."""

from collections.abc import Iterator
from dataclasses import dataclass

from torch import Tensor

MULTIPLE = 32
"""Sides of a batch are padded to a multiple of this."""


@dataclass(frozen=True, eq=False)
class Batch:
    """Images of one size, and how large each is without its padding; a sequence of images."""

    tensors: Tensor
    """``[N, 3, H, W]``, sides multiples of 32, zeros at the right and the bottom."""
    image_sizes: list[tuple[int, int]]
    """(height, width) of each."""

    def __len__(self) -> int:
        return len(self.image_sizes)

    def __getitem__(self, place: int) -> Tensor:
        height, width = self.image_sizes[place]
        return self.tensors[place, :, :height, :width]

    def __iter__(self) -> Iterator[Tensor]:
        return (self[place] for place in range(len(self)))


def padded(side: int) -> int:
    """Return the length to which a side is padded.

    >>> padded(33)
    64
    """
    return -(-side // MULTIPLE) * MULTIPLE
