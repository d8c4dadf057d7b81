"""Binary 3x3 convolutions of few channels: each of the three products is one pass over memory.

A convolution of 16 to 64 channels is bound by bytes, and the stock kernels for it move several
times the fewest. Here the sign is taken while z is loaded, so that binary activations are never
stored; the input gradient applies the surrogate, adds the auxiliary gradient and sums both
squared norms before it is written; both weight gradients come from one pass over z and G.

Two pixels share a window, and zeros of a weight stand where it is the other's: NaN and infinity
may reach one pixel further than in a convolution.
"""

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.library import wrap_triton

from surge.functional import sign
from surge.kernels import narrow_kernels as kernels


def _windows(weight: Tensor, dtype: torch.dtype, group: int) -> Tensor:
    """Return a weight ``[last, first, 3, 3]`` as ``[3, 4 * first, group * last]``.

    Each pixel of a group has its own columns, with zeros where the window is not its own.
    """
    last, first = weight.shape[:2]
    lines = weight.to(dtype).permute(2, 3, 1, 0).reshape(3, 3 * first, last)
    own = [F.pad(lines, (0, 0, place * first, (1 - place) * first)) for place in range(group)]
    return torch.cat(own, dim=2)


def _reversed(weight: Tensor, dtype: torch.dtype, group: int) -> Tensor:
    """Return the weight that carries a gradient back, as :func:`_windows` does."""
    return _windows(weight.flip(2, 3).transpose(0, 1), dtype, group)


class Tile(NamedTuple):
    """How a kernel divides its work."""

    groups: int
    """Groups of pixels that a program holds at a time."""
    warps: int
    stages: int
    """Loads in flight."""
    pixels: int = 2
    """Of a group, one or two; one where a line is not made of whole groups."""

    def group(self, width: int) -> int:
        """Return the pixels of a group in lines of some width."""
        return self.pixels if width % self.pixels == 0 else 1


FORWARD = Tile(64, 4, 1)
INPUT = {16: Tile(128, 4, 2), 32: Tile(128, 4, 1), 64: Tile(128, 8, 1, pixels=1)}
"""Tiles of the input gradient, by the wider side's channels; measured on one H200."""
WEIGHT = {16: Tile(128, 4, 2), 32: Tile(64, 4, 3), 64: Tile(64, 8, 3, pixels=1)}
"""Tiles of the weight gradient."""
CHUNKS = {16: 132, 32: 88, 64: 44}
"""Parts of the pixels that are summed apart, each of which writes a whole weight."""
ADDED = {"BLOCK": 32, "ROWS": 16, "num_warps": 4}
"""Weights of a program that adds up parts, and how many parts it takes at a time."""


def blocks(count: int, block: int) -> int:
    """Return how many blocks hold so many."""
    return -(-count // block)


def image_memory(x: Tensor, channels: int) -> Tensor:
    """Return memory for an image like ``x`` with other channels, these last.

    Asked for in that format, it would be filled by compiled code.
    """
    batch, _, height, width = x.shape
    memory = torch.empty((batch, height, width, channels), dtype=x.dtype, device=x.device)
    return memory.permute(0, 3, 1, 2)


def forward(z: Tensor, weight: Tensor, alpha: Tensor | None) -> Tensor:
    """Return ``alpha * conv(sign(z), weight)`` with padding 1, channels last.

    From 32 channels on the stock convolution is faster, sign apart.
    """
    if max(weight.shape[:2]) > 16:
        y = F.conv2d(sign(z), weight.to(z.dtype), padding=1)
        return y if alpha is None else y * alpha.view(-1, 1, 1).to(y.dtype)
    batch, inputs, height, width = z.shape
    outputs, count = weight.shape[0], batch * height * width
    y = image_memory(z, outputs)
    tile, group = FORWARD, FORWARD.group(width)
    wrap_triton(kernels.narrow_forward)[(blocks(count, group * tile.groups),)](
        z,
        _windows(weight, z.dtype, group),
        alpha if alpha is not None else z,
        y,
        count,
        HEIGHT=height,
        WIDTH=width,
        INPUTS=inputs,
        OUTPUTS=outputs,
        GROUP=group,
        SCALED=alpha is not None,
        BLOCK=tile.groups,
        num_warps=tile.warps,
        num_stages=tile.stages,
    )
    return y


def input_gradient(
    grad: Tensor,
    z: Tensor,
    main: Tensor,
    auxiliary: Tensor | None,
    scale: Tensor | None,
    surrogate: int,
) -> tuple[Tensor, Tensor]:
    """Return ``surrogate(z) * main^T G + scale * auxiliary^T G`` and both squared norms.

    Without an auxiliary weight the norms are left empty.
    """
    batch, inputs, height, width = z.shape
    outputs, count = grad.shape[1], batch * height * width
    out = torch.empty_like(z)
    tile = INPUT[max(inputs, outputs)]
    group = tile.group(width)
    programs = blocks(count, group * tile.groups)
    dual = auxiliary is not None
    partial = torch.empty((programs if dual else 0, 2), dtype=torch.float32, device=z.device)
    back = _reversed(main, z.dtype, group)
    wrap_triton(kernels.narrow_input_gradient)[(programs,)](
        grad,
        back,
        _reversed(auxiliary, z.dtype, group) if auxiliary is not None else back,
        scale if scale is not None else z,
        z,
        out,
        partial,
        count,
        HEIGHT=height,
        WIDTH=width,
        INPUTS=inputs,
        OUTPUTS=outputs,
        GROUP=group,
        SURROGATE=surrogate,
        DUAL=dual,
        BLOCK=tile.groups,
        num_warps=tile.warps,
        num_stages=tile.stages,
    )
    return out, partial.sum(dim=0)


def weight_gradient(grad: Tensor, z: Tensor, dual: bool) -> Tensor:
    """Return ``sign(z) * G``, with ``dual`` also ``z * G``: float32 ``[paths, O, I, 3, 3]``."""
    batch, inputs, height, width = z.shape
    outputs, count = grad.shape[1], batch * height * width
    widest = max(inputs, outputs)
    tile = WEIGHT[widest]
    group = tile.group(width)
    each = blocks(count, group * tile.groups * CHUNKS[widest])
    chunks = blocks(count, group * tile.groups * each)
    out = torch.empty(
        (2 if dual else 1, outputs, 3, 3, inputs), dtype=torch.float32, device=z.device
    )
    partial = out.new_empty((chunks * group, out.numel()))
    wrap_triton(kernels.narrow_weight_gradient)[(chunks, 3)](
        grad,
        z,
        partial,
        count,
        each,
        HEIGHT=height,
        WIDTH=width,
        INPUTS=inputs,
        OUTPUTS=outputs,
        GROUP=group,
        DUAL=dual,
        BLOCK=tile.groups,
        num_warps=tile.warps,
        num_stages=tile.stages,
    )
    wrap_triton(kernels.narrow_add_up)[(blocks(out.numel(), ADDED["BLOCK"]),)](
        partial,
        out,
        chunks * group,
        out.numel(),
        INPUTS=inputs,
        OUTPUTS=outputs,
        **ADDED,
    )
    return out.permute(0, 1, 4, 2, 3)
