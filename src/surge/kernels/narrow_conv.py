# mypy: disable-error-code="no-untyped-def, no-untyped-call, misc, untyped-decorator"
"""Binary 3x3 convolutions of few channels: each of the three products is one pass over memory.

A convolution of 16 to 64 channels is bound by bytes, and the stock kernels for it move several
times the fewest. Here the sign is taken while z is loaded, so that binary activations are never
stored; the input gradient applies the surrogate, adds the auxiliary gradient and sums both
squared norms before it is written; both weight gradients come from one pass over z and G.

Tensors are NHWC in memory and flattened to ``[pixels, channels]``: then the three
neighbours in one line of the kernel are consecutive, and a line is one matrix product. Sums
are in float32 and in a fixed order, so results repeat bit for bit.
"""

from typing import NamedTuple

import torch
import torch.nn.functional as F
import triton
import triton.language as tl
from torch import Tensor
from torch.library import wrap_triton

from surge.functional import sign

CLIPPED, BIREAL = tl.constexpr(1), tl.constexpr(2)


@triton.jit
def _sign(x, inside):
    """Return +1, -1 or NaN, and 0 in the padding."""
    return tl.where(inside, tl.where(x >= 0, 1.0, tl.where(x < 0, -1.0, x)), 0.0)


@triton.jit
def _load_line(pointer, pixel, count, dy, HEIGHT, WIDTH, CHANNELS: tl.constexpr):
    """Load three neighbours of each pixel, one line of the kernel, side by side.

    They are consecutive in memory. A fourth, empty one fills the tile up to a power of two.
    Returns the values, zero outside the image, and which of them exist.
    """
    lane = tl.arange(0, 4 * CHANNELS)
    row = (pixel // WIDTH) % HEIGHT + dy
    column = (pixel % WIDTH)[:, None] + (lane // CHANNELS - 1)[None, :]
    inside = (column >= 0) & (column < WIDTH) & (lane < 3 * CHANNELS)[None, :]
    inside &= ((row >= 0) & (row < HEIGHT) & (pixel < count))[:, None]
    where = (pixel + dy * WIDTH)[:, None] * CHANNELS + (lane - CHANNELS)[None, :]
    return tl.load(pointer + where, mask=inside, other=0.0), inside


@triton.jit
def _matrix(ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    """Return the offsets of a dense matrix."""
    return tl.arange(0, ROWS)[:, None] * COLUMNS + tl.arange(0, COLUMNS)[None, :]


@triton.jit
def _forward(
    z,
    weight,
    alpha,
    y,
    count,
    HEIGHT: tl.constexpr,
    WIDTH: tl.constexpr,
    INPUTS: tl.constexpr,
    OUTPUTS: tl.constexpr,
    SCALED: tl.constexpr,
    BLOCK: tl.constexpr,
):
    # One neighbour at a time: signs take registers, and a whole line of them too many.
    pixel = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inputs, outputs = tl.arange(0, INPUTS), tl.arange(0, OUTPUTS)
    total = tl.zeros((BLOCK, OUTPUTS), tl.float32)
    for tap in tl.static_range(9):
        row = (pixel // WIDTH) % HEIGHT + (tap // 3 - 1)
        column = pixel % WIDTH + (tap % 3 - 1)
        inside = (row >= 0) & (row < HEIGHT) & (column >= 0) & (column < WIDTH)
        inside = (inside & (pixel < count))[:, None]
        shift = (tap // 3 - 1) * WIDTH + tap % 3 - 1
        where = (pixel + shift)[:, None] * INPUTS + inputs[None, :]
        x = tl.load(z + where, mask=inside, other=0.0)
        w = tl.load(weight + tap * INPUTS * OUTPUTS + _matrix(INPUTS, OUTPUTS))
        total = tl.dot(_sign(x, inside).to(w.dtype), w, total)
    if SCALED:
        total = total * tl.load(alpha + outputs)[None, :]
    where = pixel[:, None] * OUTPUTS + outputs[None, :]
    tl.store(y + where, total.to(y.dtype.element_ty), mask=(pixel < count)[:, None])


@triton.jit
def _input_gradient(
    grad,
    main,
    auxiliary,
    scale,
    z,
    out,
    partial,
    count,
    HEIGHT: tl.constexpr,
    WIDTH: tl.constexpr,
    INPUTS: tl.constexpr,
    OUTPUTS: tl.constexpr,
    SURROGATE: tl.constexpr,
    DUAL: tl.constexpr,
    BLOCK: tl.constexpr,
):
    program = tl.program_id(0)
    pixel = program * BLOCK + tl.arange(0, BLOCK)
    g_b = tl.zeros((BLOCK, INPUTS), tl.float32)
    g_a = tl.zeros((BLOCK, INPUTS), tl.float32)
    for line in range(3):
        g, _ = _load_line(grad, pixel, count, line - 1, HEIGHT, WIDTH, OUTPUTS)
        where = line * 4 * INPUTS * OUTPUTS + _matrix(4 * OUTPUTS, INPUTS)
        g_b = tl.dot(g, tl.load(main + where), g_b)
        if DUAL:
            g_a = tl.dot(g, tl.load(auxiliary + where), g_a)
    inside = (pixel < count)[:, None]
    where = pixel[:, None] * INPUTS + tl.arange(0, INPUTS)[None, :]
    x = tl.load(z + where, mask=inside, other=0.0).to(tl.float32)
    if SURROGATE == CLIPPED:
        g_b = tl.where(tl.abs(x) <= 1, g_b, 0.0)
    elif SURROGATE == BIREAL:
        g_b = g_b * tl.maximum(2 - 2 * tl.abs(x), 0.0)
    total = g_b
    if DUAL:
        # Rows past the end loaded zeros, so they add nothing.
        tl.store(partial + 2 * program, tl.sum(g_b * g_b))
        tl.store(partial + 2 * program + 1, tl.sum(g_a * g_a))
        total = g_b + tl.load(scale) * g_a
    tl.store(out + where, total.to(out.dtype.element_ty), mask=inside)


@triton.jit
def _weight_gradient(
    grad,
    z,
    partial,
    count,
    blocks,
    HEIGHT: tl.constexpr,
    WIDTH: tl.constexpr,
    INPUTS: tl.constexpr,
    OUTPUTS: tl.constexpr,
    DUAL: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Sum ``sign(z)^T G`` and ``z^T G`` over a run of pixels, for one line of the kernel."""
    chunk, line = tl.program_id(0), tl.program_id(1)
    to_main = tl.zeros((4 * INPUTS, OUTPUTS), tl.float32)
    to_auxiliary = tl.zeros((4 * INPUTS, OUTPUTS), tl.float32)
    for block in range(blocks):
        pixel = (chunk * blocks + block) * BLOCK + tl.arange(0, BLOCK)
        where = pixel[:, None] * OUTPUTS + tl.arange(0, OUTPUTS)[None, :]
        g = tl.load(grad + where, mask=(pixel < count)[:, None], other=0.0)
        x, inside = _load_line(z, pixel, count, line - 1, HEIGHT, WIDTH, INPUTS)
        to_main = tl.dot(tl.trans(_sign(x, inside).to(g.dtype)), g, to_main)
        if DUAL:
            to_auxiliary = tl.dot(tl.trans(x), g, to_auxiliary)
    SIZE: tl.constexpr = 3 * INPUTS * OUTPUTS
    PATHS: tl.constexpr = 2 if DUAL else 1
    where = partial + (chunk * PATHS * 3 + line) * SIZE + _matrix(4 * INPUTS, OUTPUTS)
    real = tl.arange(0, 4 * INPUTS)[:, None] < 3 * INPUTS
    tl.store(where, to_main, mask=real)
    if DUAL:
        tl.store(where + 3 * SIZE, to_auxiliary, mask=real)


def _lines(weight: Tensor, dtype: torch.dtype) -> Tensor:
    """Return a weight ``[last, first, 3, 3]`` as ``[3, 4 * first, last]``, padded with zeros."""
    last, first = weight.shape[:2]
    lines = weight.to(dtype).permute(2, 3, 1, 0).reshape(3, 3 * first, last)
    return F.pad(lines, (0, 0, 0, first)).contiguous()


def _reversed(weight: Tensor, dtype: torch.dtype) -> Tensor:
    """Return the weight that carries a gradient back, as :func:`_lines` does."""
    return _lines(weight.flip(2, 3).transpose(0, 1), dtype)


class Tile(NamedTuple):
    """How a kernel divides its work."""

    pixels: int
    """Pixels that a program holds at a time."""
    warps: int
    stages: int
    """Loads in flight."""


FORWARD = Tile(64, 2, 1)
INPUT = {16: Tile(128, 4, 2), 32: Tile(128, 8, 2), 64: Tile(128, 8, 1)}
"""Tiles of the input gradient, by the wider side's channels; measured on one H200."""
WEIGHT = {16: Tile(128, 4, 2), 32: Tile(64, 8, 1), 64: Tile(32, 8, 1)}
"""Tiles of the weight gradient."""
CHUNKS = {16: 176, 32: 88, 64: 44}
"""Parts of the pixels that are summed apart, each of which writes a whole weight."""


def _blocks(count: int, block: int) -> int:
    return -(-count // block)


def forward(z: Tensor, weight: Tensor, alpha: Tensor | None) -> Tensor:
    """Return ``alpha * conv(sign(z), weight)`` with padding 1, channels last.

    From 32 channels on the stock convolution is faster, sign apart.
    """
    if max(weight.shape[:2]) > 16:
        y = F.conv2d(sign(z), weight.to(z.dtype), padding=1)
        return y if alpha is None else y * alpha.view(-1, 1, 1).to(y.dtype)
    batch, inputs, height, width = z.shape
    outputs, count = weight.shape[0], batch * height * width
    y = torch.empty(
        (batch, outputs, height, width),
        dtype=z.dtype,
        device=z.device,
        memory_format=torch.channels_last,
    )
    tile = FORWARD
    wrap_triton(_forward)[(_blocks(count, tile.pixels),)](
        z,
        weight.to(z.dtype).permute(2, 3, 1, 0).contiguous(),
        alpha if alpha is not None else z,
        y,
        count,
        HEIGHT=height,
        WIDTH=width,
        INPUTS=inputs,
        OUTPUTS=outputs,
        SCALED=alpha is not None,
        BLOCK=tile.pixels,
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
    programs = _blocks(count, tile.pixels)
    dual = auxiliary is not None
    partial = torch.empty((programs if dual else 0, 2), dtype=torch.float32, device=z.device)
    back = _reversed(main, z.dtype)
    wrap_triton(_input_gradient)[(programs,)](
        grad,
        back,
        _reversed(auxiliary, z.dtype) if auxiliary is not None else back,
        scale if scale is not None else z,
        z,
        out,
        partial,
        count,
        HEIGHT=height,
        WIDTH=width,
        INPUTS=inputs,
        OUTPUTS=outputs,
        SURROGATE=surrogate,
        DUAL=dual,
        BLOCK=tile.pixels,
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
    each = _blocks(count, tile.pixels * CHUNKS[widest])
    chunks = _blocks(count, tile.pixels * each)
    paths = 2 if dual else 1
    partial = torch.empty(
        (chunks, paths, 3, 3, inputs, outputs), dtype=torch.float32, device=z.device
    )
    wrap_triton(_weight_gradient)[(chunks, 3)](
        grad,
        z,
        partial,
        count,
        each,
        HEIGHT=height,
        WIDTH=width,
        INPUTS=inputs,
        OUTPUTS=outputs,
        DUAL=dual,
        BLOCK=tile.pixels,
        num_warps=tile.warps,
        num_stages=tile.stages,
    )
    return partial.sum(dim=0).permute(0, 4, 3, 1, 2)
