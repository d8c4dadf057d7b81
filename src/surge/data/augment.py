"""Batched augmentation: pure tensor functions for any device.

They never look at a value on the host, so they can be compiled and captured in a CUDA graph.
All randomness comes in as tensors (:mod:`surge.data.plan` draws them): the same numbers give
the same images, bit for bit, on every device.
"""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from surge.errors import ConfigError


@dataclass(frozen=True)
class Augmentation:
    """Random crop after zero padding, and horizontal flip; the defaults are CIFAR-10's."""

    padding: int = 4
    """Black pixels added on every side before an image of the old size is cut out."""
    flip: bool = True
    """Mirror every image with probability one half."""

    def __post_init__(self) -> None:
        """Check the padding."""
        if self.padding < 0:
            raise ConfigError(f"padding={self.padding} is not accepted: it must be at least 0.")


def crop_flip(images: Tensor, offsets: Tensor, flips: Tensor, *, padding: int = 4) -> Tensor:
    """Cut a window of the old size out of each zero-padded image, then mirror some of them.

    The fill is pixel value 0 (black), so this belongs before :func:`normalize`, as padding an
    image file does; zero fill after normalisation would be mid-grey.

    Args:
        images: ``[N, C, H, W]`` of any type.
        offsets: integer ``[N, 2]``, top row and left column of each window in the padded image,
            from 0 to ``2 * padding``; ``padding`` leaves the image where it is. The range is
            not checked: that would wait for the device.
        flips: bool ``[N]``, mirrored left to right where true.
        padding: black pixels on every side.
    """
    count, channels, height, width = images.shape
    padded = F.pad(images, (padding, padding, padding, padding))
    rows = offsets[:, :1] + torch.arange(height, device=images.device)
    column = torch.arange(width, device=images.device)
    columns = offsets[:, 1:] + torch.where(flips[:, None], width - 1 - column, column)
    # One flat index per pixel, shared by the channels: a single gather does crop and flip.
    pixel = rows[:, :, None] * (width + 2 * padding) + columns[:, None, :]
    pixel = pixel.reshape(count, 1, height * width).expand(count, channels, height * width)
    return padded.flatten(2).gather(2, pixel).reshape(count, channels, height, width)


def normalize(
    images: Tensor,
    scale: Tensor,
    shift: Tensor,
    *,
    dtype: torch.dtype = torch.float32,
    memory_format: torch.memory_format = torch.contiguous_format,
) -> Tensor:
    """Turn stored pixels into network input, ``pixel * scale + shift``.

    ``scale`` and ``shift`` come from :meth:`Normalization.constants`. The arithmetic is in
    float32 whatever ``dtype`` is, so that low precision rounds once.
    """
    return (images * scale + shift).to(dtype=dtype, memory_format=memory_format)
