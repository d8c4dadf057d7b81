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
def _sign(x):
    """Return +1, -1 or NaN."""
    return tl.where(x >= 0, 1.0, tl.where(x < 0, -1.0, x))


@triton.jit
def _load_window(
    pointer, group, count, dy, HEIGHT, WIDTH, CHANNELS: tl.constexpr, GROUP: tl.constexpr
):
    """Load what a group of neighbouring pixels sees in one line of the kernel, side by side.

    Two pixels see four, which are consecutive in memory: half as many loads as of three for each.
    A single one sees three, and a fourth, empty one fills the tile. Values outside are zero.
    """
    lane = tl.arange(0, 4 * CHANNELS)
    pixel = group * GROUP
    row = (pixel // WIDTH) % HEIGHT + dy
    column = (pixel % WIDTH)[:, None] + (lane // CHANNELS - 1)[None, :]
    inside = (column >= 0) & (column < WIDTH) & (lane < (GROUP + 2) * CHANNELS)[None, :]
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
    GROUP: tl.constexpr,
    SCALED: tl.constexpr,
    BLOCK: tl.constexpr,
):
    group = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    outputs = tl.arange(0, GROUP * OUTPUTS)
    total = tl.zeros((BLOCK, GROUP * OUTPUTS), tl.float32)
    for line in tl.static_range(3):
        x, inside = _load_window(z, group, count, line - 1, HEIGHT, WIDTH, INPUTS, GROUP)
        where = line * 4 * GROUP * INPUTS * OUTPUTS + _matrix(4 * INPUTS, GROUP * OUTPUTS)
        w = tl.load(weight + where)
        total = tl.dot(tl.where(inside, _sign(x), 0.0).to(w.dtype), w, total)
    if SCALED:
        total = total * tl.load(alpha + outputs % OUTPUTS)[None, :]
    where = group[:, None] * (GROUP * OUTPUTS) + outputs[None, :]
    tl.store(y + where, total.to(y.dtype.element_ty), mask=(group * GROUP < count)[:, None])


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
    GROUP: tl.constexpr,
    SURROGATE: tl.constexpr,
    DUAL: tl.constexpr,
    BLOCK: tl.constexpr,
):
    program = tl.program_id(0)
    group = program * BLOCK + tl.arange(0, BLOCK)
    g_b = tl.zeros((BLOCK, GROUP * INPUTS), tl.float32)
    g_a = tl.zeros((BLOCK, GROUP * INPUTS), tl.float32)
    for line in range(3):
        g, _ = _load_window(grad, group, count, line - 1, HEIGHT, WIDTH, OUTPUTS, GROUP)
        where = line * 4 * GROUP * INPUTS * OUTPUTS + _matrix(4 * OUTPUTS, GROUP * INPUTS)
        g_b = tl.dot(g, tl.load(main + where), g_b)
        if DUAL:
            g_a = tl.dot(g, tl.load(auxiliary + where), g_a)
    inside = (group * GROUP < count)[:, None]
    where = group[:, None] * (GROUP * INPUTS) + tl.arange(0, GROUP * INPUTS)[None, :]
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
    GROUP: tl.constexpr,
    DUAL: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Sum ``sign(z)^T G`` and ``z^T G`` over a run of pixels, for one line of the kernel.

    z stays and G is shifted, so that a sign is taken once and not for each of its neighbours: a
    neighbour in G is then the opposite tap. Each pixel of a group makes a sum of its own.
    """
    chunk, line = tl.program_id(0), tl.program_id(1)
    row, lane = tl.arange(0, GROUP * INPUTS), tl.arange(0, 4 * OUTPUTS)
    to_main = tl.zeros((GROUP * INPUTS, 4 * OUTPUTS), tl.float32)
    to_auxiliary = tl.zeros((GROUP * INPUTS, 4 * OUTPUTS), tl.float32)
    for block in range(blocks):
        group = (chunk * blocks + block) * BLOCK + tl.arange(0, BLOCK)
        where = group[:, None] * (GROUP * INPUTS) + row[None, :]
        x = tl.load(z + where, mask=(group * GROUP < count)[:, None], other=0.0)
        g, _ = _load_window(grad, group, count, line - 1, HEIGHT, WIDTH, OUTPUTS, GROUP)
        to_main = tl.dot(tl.trans(_sign(x).to(g.dtype)), g, to_main)
        if DUAL:
            to_auxiliary = tl.dot(tl.trans(x), g, to_auxiliary)
    SIZE: tl.constexpr = 9 * INPUTS * OUTPUTS
    PATHS: tl.constexpr = 2 if DUAL else 1
    place = row // INPUTS
    tap = (lane // OUTPUTS)[None, :] - place[:, None]
    where = ((chunk * GROUP + place) * PATHS * SIZE + row % INPUTS * (3 * OUTPUTS))[:, None]
    where += line * (3 * INPUTS * OUTPUTS) + tap * OUTPUTS + (lane % OUTPUTS)[None, :]
    real = (tap >= 0) & (tap < 3)
    tl.store(partial + where, to_main, mask=real)
    if DUAL:
        tl.store(partial + where + SIZE, to_auxiliary, mask=real)


@triton.jit
def _add_up(
    partial,
    out,
    parts,
    size,
    INPUTS: tl.constexpr,
    OUTPUTS: tl.constexpr,
    ROWS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Sum the parts of :func:`_weight_gradient`; write them as weights are laid out."""
    index = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    total = tl.zeros((ROWS, BLOCK), tl.float32)
    for first in range(0, parts, ROWS):
        part = first + tl.arange(0, ROWS)
        inside = (part < parts)[:, None] & (index < size)[None, :]
        total += tl.load(partial + part[:, None] * size + index[None, :], mask=inside, other=0.0)
    # From [path, line, input, tap, output], backwards, to [path, output, line, tap, input].
    output, tap = index % OUTPUTS, 2 - index // OUTPUTS % 3
    channel = index // (3 * OUTPUTS) % INPUTS
    line, path = 2 - index // (3 * INPUTS * OUTPUTS) % 3, index // (9 * INPUTS * OUTPUTS)
    where = (((path * OUTPUTS + output) * 3 + line) * 3 + tap) * INPUTS + channel
    tl.store(out + where, tl.sum(total, axis=0), mask=index < size)


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
    """Of a group, at most: a line is made of whole groups."""

    def group(self, width: int) -> int:
        """Return the pixels of a group where a line has so many."""
        return self.pixels if width % self.pixels == 0 else 1


FORWARD = Tile(64, 4, 1)
INPUT = {16: Tile(128, 4, 2), 32: Tile(128, 4, 1), 64: Tile(128, 8, 1, pixels=1)}
"""Tiles of the input gradient, by the wider side's channels; measured on one H200."""
WEIGHT = {16: Tile(128, 4, 2), 32: Tile(64, 4, 3), 64: Tile(64, 8, 3, pixels=1)}
"""Tiles of the weight gradient."""
CHUNKS = {16: 132, 32: 88, 64: 44}
"""Parts of the pixels that are summed apart, each of which writes a whole weight."""
ADDED, ROWS = Tile(32, 4, 1), 16
"""Of the sum over parts, so many at a time; a group is a weight here."""


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
    tile, group = FORWARD, FORWARD.group(width)
    wrap_triton(_forward)[(_blocks(count, group * tile.groups),)](
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
    programs = _blocks(count, group * tile.groups)
    dual = auxiliary is not None
    partial = torch.empty((programs if dual else 0, 2), dtype=torch.float32, device=z.device)
    back = _reversed(main, z.dtype, group)
    wrap_triton(_input_gradient)[(programs,)](
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
    each = _blocks(count, group * tile.groups * CHUNKS[widest])
    chunks = _blocks(count, group * tile.groups * each)
    out = torch.empty(
        (2 if dual else 1, outputs, 3, 3, inputs), dtype=torch.float32, device=z.device
    )
    partial = out.new_empty((chunks * group, out.numel()))
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
        GROUP=group,
        DUAL=dual,
        BLOCK=tile.groups,
        num_warps=tile.warps,
        num_stages=tile.stages,
    )
    wrap_triton(_add_up)[(_blocks(out.numel(), ADDED.groups),)](
        partial,
        out,
        chunks * group,
        out.numel(),
        INPUTS=inputs,
        OUTPUTS=outputs,
        ROWS=ROWS,
        BLOCK=ADDED.groups,
        num_warps=ADDED.warps,
    )
    return out.permute(0, 1, 4, 2, 3)
