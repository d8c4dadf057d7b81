# mypy: disable-error-code="no-untyped-def, no-untyped-call, misc, untyped-decorator"
"""The Triton kernels behind :mod:`surge.kernels.stem_conv`.

Tensors are NHWC in memory and flattened to ``[pixels, channels]``. All that a pixel sees of an
image in colour fits into 32 lanes, so the convolution is one matrix product. Sums are in float32
and in a fixed order, so results repeat bit for bit.
"""

import triton
import triton.language as tl

CHANNELS, LANES = tl.constexpr(3), tl.constexpr(32)


@triton.jit
def _load_windows(image, pixel, count, HEIGHT, WIDTH):
    """Load what each pixel sees: three lines, each consecutive in memory, then empty lanes.

    Values outside are zero.
    """
    lane = tl.arange(0, LANES)
    line, place = lane // (3 * CHANNELS) - 1, lane % (3 * CHANNELS)
    row = (pixel // WIDTH % HEIGHT)[:, None] + line[None, :]
    column = (pixel % WIDTH)[:, None] + (place // CHANNELS - 1)[None, :]
    inside = (row >= 0) & (row < HEIGHT) & (column >= 0) & (column < WIDTH)
    inside &= (pixel < count)[:, None] & (lane < 9 * CHANNELS)[None, :]
    where = (pixel * CHANNELS)[:, None] + ((line * WIDTH - 1) * CHANNELS + place)[None, :]
    return tl.load(image + where, mask=inside, other=0.0)


@triton.jit
def stem_forward(
    image,
    weight,
    y,
    count,
    HEIGHT: tl.constexpr,
    WIDTH: tl.constexpr,
    OUTPUTS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Write ``conv(image, weight)`` for a weight laid out as ``[LANES, OUTPUTS]``."""
    pixel = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    outputs = tl.arange(0, OUTPUTS)
    w = tl.load(weight + tl.arange(0, LANES)[:, None] * OUTPUTS + outputs[None, :])
    total = tl.dot(_load_windows(image, pixel, count, HEIGHT, WIDTH), w)
    where = pixel[:, None] * OUTPUTS + outputs[None, :]
    tl.store(y + where, total.to(y.dtype.element_ty), mask=(pixel < count)[:, None])


@triton.jit
def stem_weight_gradient(
    grad,
    image,
    partial,
    count,
    blocks,
    HEIGHT: tl.constexpr,
    WIDTH: tl.constexpr,
    OUTPUTS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Sum ``windows^T G`` over a run of pixels."""
    chunk = tl.program_id(0)
    outputs = tl.arange(0, OUTPUTS)
    total = tl.zeros((LANES, OUTPUTS), tl.float32)
    for block in range(blocks):
        pixel = (chunk * blocks + block) * BLOCK + tl.arange(0, BLOCK)
        where = pixel[:, None] * OUTPUTS + outputs[None, :]
        g = tl.load(grad + where, mask=(pixel < count)[:, None], other=0.0)
        x = _load_windows(image, pixel, count, HEIGHT, WIDTH)
        total = tl.dot(tl.trans(x), g, total)
    where = (chunk * LANES + tl.arange(0, LANES))[:, None] * OUTPUTS + outputs[None, :]
    tl.store(partial + where, total)
