"""The first 3x3 convolution of a network on images: each product is one pass over memory.

An image in three colours is small, and what the convolution makes of it is not: writing that, and
reading its gradient, is nearly all there is to do, and the stock kernels take several times as
long. The image itself needs no gradient.
"""

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.library import wrap_triton

from surge.kernels import stem_kernels as kernels
from surge.kernels.narrow_conv import blocks, image_memory

LANES = 32
"""The 27 values that a pixel sees, and empty ones that fill a tile."""


class Tile(NamedTuple):
    """How a kernel divides its work."""

    pixels: int
    """Pixels that a program holds at a time."""
    warps: int
    stages: int
    """Loads in flight."""


FORWARD = {16: Tile(128, 4, 1), 64: Tile(128, 4, 1), 128: Tile(64, 4, 1)}
"""Tiles of the forward, by output channels; measured on one H200."""
WEIGHT = {16: Tile(128, 4, 3), 64: Tile(128, 4, 2), 128: Tile(128, 8, 3)}
"""Tiles of the weight gradient."""
CHUNKS = 264
"""Parts of the pixels that are summed apart, each of which writes a whole weight."""


def _lanes(weight: Tensor, dtype: torch.dtype) -> Tensor:
    """Return a weight ``[O, 3, 3, 3]`` as ``[LANES, O]``, in the order of memory, then zeros."""
    taps = weight.to(dtype).permute(2, 3, 1, 0).flatten(0, 2)
    return F.pad(taps, (0, 0, 0, LANES - taps.shape[0]))


def forward(image: Tensor, weight: Tensor) -> Tensor:
    """Return ``conv(image, weight)`` with padding 1, channels last."""
    batch, _, height, width = image.shape
    outputs, count = weight.shape[0], batch * height * width
    y = image_memory(image, outputs)
    tile = FORWARD[outputs]
    wrap_triton(kernels.stem_forward)[(blocks(count, tile.pixels),)](
        image,
        _lanes(weight, image.dtype),
        y,
        count,
        HEIGHT=height,
        WIDTH=width,
        OUTPUTS=outputs,
        BLOCK=tile.pixels,
        num_warps=tile.warps,
        num_stages=tile.stages,
    )
    return y


def weight_gradient(grad: Tensor, image: Tensor) -> Tensor:
    """Return the gradient of the weight, float32 ``[O, 3, 3, 3]``."""
    batch, _, height, width = image.shape
    outputs, count = grad.shape[1], batch * height * width
    tile = WEIGHT[outputs]
    each = blocks(count, tile.pixels * CHUNKS)
    chunks = blocks(count, tile.pixels * each)
    partial = torch.empty((chunks, LANES, outputs), dtype=torch.float32, device=image.device)
    wrap_triton(kernels.stem_weight_gradient)[(chunks,)](
        grad,
        image,
        partial,
        count,
        each,
        HEIGHT=height,
        WIDTH=width,
        OUTPUTS=outputs,
        BLOCK=tile.pixels,
        num_warps=tile.warps,
        num_stages=tile.stages,
    )
    taps = partial.sum(dim=0)[:27].view(3, 3, 3, outputs)
    return taps.permute(3, 2, 0, 1)
