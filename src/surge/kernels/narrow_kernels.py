# mypy: disable-error-code="no-untyped-def, no-untyped-call, misc, untyped-decorator"
"""The Triton kernels behind :mod:`surge.kernels.narrow_conv`.

Tensors are NHWC in memory and flattened to ``[pixels, channels]``: then what a group of pixels
sees in one line of a 3x3 kernel is consecutive, and a line is one matrix product. Sums are in
float32 and in a fixed order, so results repeat bit for bit.
"""

import triton
import triton.language as tl

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

    Two pixels see four, which are consecutive in memory: a third less than three for each. A
    single one sees three, and a fourth, empty one fills the tile. Values outside are zero.
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
def narrow_forward(
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
    """Write ``alpha * conv(sign(z), weight)``; signs are zero in the padding."""
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
def narrow_input_gradient(
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
    """Write ``surrogate(z) main^T G + scale auxiliary^T G``, and both squared norms in parts."""
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
def narrow_weight_gradient(
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
        # Past the end signs are +1, and G is zero.
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
def narrow_add_up(
    partial,
    out,
    parts,
    size,
    INPUTS: tl.constexpr,
    OUTPUTS: tl.constexpr,
    ROWS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Sum the parts of :func:`narrow_weight_gradient`; write them as weights are laid out."""
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
