"""Crops of any size as batched tensor code: boxes, resampling, PCA lighting.

Boxes come from numbers drawn on the CPU before an epoch. Resampling is two small matrix products
per image with the weights of a triangle filter, which is what Pillow's bilinear resize computes
(a wider filter where it shrinks): the same on every device up to rounding, and nothing in it waits
for the host.
"""

import hashlib
import math

import torch
from torch import Tensor

TRIES = 10
"""Boxes that are tried before the middle of the image is taken."""
DRAWS = 2 * TRIES + 2
"""Numbers in [0, 1) that decide a box."""
RATIO = (3 / 4, 4 / 3)
"""Least and largest width over height of a box."""
MARGIN = 256 / 224
"""For a test the image is resized to the crop's size times this."""

EIGENVALUES = (0.2175, 0.0188, 0.0045)
EIGENVECTORS = (
    (-0.5675, 0.7192, 0.4009),
    (-0.5808, -0.0045, -0.8140),
    (-0.5836, -0.6948, 0.4203),
)
"""Of the colours of ImageNet; one row per channel."""
LIGHTING = 0.1
"""Standard deviation of the lighting's three numbers."""


def crop_seed(seed: int, epoch: int) -> int:
    """Return the seed of the numbers that decide the crops of an epoch."""
    digest = hashlib.sha256(f"crops of epoch {epoch} of seed {seed}".encode()).digest()
    return int.from_bytes(digest[:4], "little")


def draw_crops(count: int, epoch: int, seed: int) -> tuple[Tensor, Tensor]:
    """Return for every position of an epoch ``[n, DRAWS]`` in [0, 1) and ``[n, 3]`` normals."""
    generator = torch.Generator().manual_seed(crop_seed(seed, epoch))
    draws = torch.rand(count, DRAWS, generator=generator, dtype=torch.float32)
    normals = torch.randn(count, 3, generator=generator, dtype=torch.float32)
    return draws, LIGHTING * normals


def random_boxes(
    draws: Tensor, height: int, width: int, scale: tuple[float, float] = (0.08, 1.0)
) -> Tensor:
    """Return boxes ``[n, 4]`` (top, left, height, width), whole numbers in float32.

    Share of the area uniform in ``scale``, logarithm of the aspect ratio uniform in that of
    ``RATIO``. Of ten boxes the first that fits is placed at random; where none fits, the largest
    with an accepted ratio stands in the middle.
    """
    share, shape = draws[:, : 2 * TRIES].double().view(-1, TRIES, 2).unbind(-1)
    area = height * width * (scale[0] + share * (scale[1] - scale[0]))
    low, high = map(math.log, RATIO)
    ratio = torch.exp(low + shape * (high - low))
    across, down = (area * ratio).sqrt().round(), (area / ratio).sqrt().round()
    fits = (across >= 1) & (across <= width) & (down >= 1) & (down <= height)
    first = fits.int().argmax(dim=1, keepdim=True)
    across, down = across.gather(1, first).squeeze(1), down.gather(1, first).squeeze(1)
    middle_height = min(height, round(width / RATIO[0]))
    middle_width = min(width, round(height * RATIO[1]))
    across = torch.where(fits.any(dim=1), across, float(middle_width))
    down = torch.where(fits.any(dim=1), down, float(middle_height))
    spare_down, spare_across = height - down, width - across
    place = draws[:, 2 * TRIES :].double()
    top = torch.minimum((place[:, 0] * (spare_down + 1)).floor(), spare_down)
    left = torch.minimum((place[:, 1] * (spare_across + 1)).floor(), spare_across)
    top = torch.where(fits.any(dim=1), top, (spare_down / 2).floor())
    left = torch.where(fits.any(dim=1), left, (spare_across / 2).floor())
    return torch.stack([top, left, down, across], dim=1).float()


def central_box(side: int, size: int) -> tuple[float, float]:
    """Return (start, extent), in an image of ``side``, of the middle that a test looks at.

    It is what remains when the image is resized to ``size * 256 / 224`` and ``size`` is cut out.
    """
    resized = round(size * MARGIN)
    step = side / resized
    return round((resized - size) / 2) * step, size * step


def filter_weights(start: Tensor, extent: Tensor, count: int, side: int, *, whole: bool) -> Tensor:
    """Return ``[n, count, side]``: how much every stored pixel adds to every new one.

    ``count`` new pixels divide the stretch from ``start`` to ``start + extent``. Pixels outside it
    take part only if ``whole``, as when an image is resized first and cropped afterwards.
    """
    step = (extent / count)[:, None, None]
    new = torch.arange(count, device=start.device, dtype=torch.float32) + 0.5
    old = torch.arange(side, device=start.device, dtype=torch.float32) + 0.5
    centre = start[:, None, None] + new[:, None] * step
    weights = (1 - (old - centre).abs() / step.clamp(min=1)).clamp(min=0)
    if not whole:
        low, high = start[:, None, None], (start + extent)[:, None, None]
        weights = weights * ((old > low) & (old < high))
    return weights / weights.sum(dim=-1, keepdim=True)


def resample(
    images: Tensor, boxes: Tensor, flips: Tensor, size: int, *, whole: bool = False
) -> Tensor:
    """Cut a box out of each image, resize it to ``size`` and mirror some; float32, 0 to 255.

    Args:
        images: ``[N, C, H, W]`` of any type.
        boxes: float ``[N, 4]``: top, left, height, width in pixels.
        flips: bool ``[N]``.
        size: side of the result.
        whole: let pixels outside a box take part at its edges.
    """
    top, left, down, across = boxes.unbind(1)
    rows = filter_weights(top, down, size, images.shape[2], whole=whole)
    columns = filter_weights(left, across, size, images.shape[3], whole=whole)
    columns = torch.where(flips[:, None, None], columns.flip(1), columns)
    narrow = images.float() @ columns.transpose(1, 2).unsqueeze(1)
    return rows.unsqueeze(1) @ narrow


def lighten(images: Tensor, normals: Tensor, basis: Tensor) -> Tensor:
    """Add PCA lighting as public code does: to whole grey levels, and cut off again.

    ``normals`` is ``[N, 3]``, ``basis`` comes from :func:`lighting_basis`. The shift is below one
    level, so that it lowers a channel by one or does nothing.
    """
    shift = normals @ basis
    return (images.round() + shift[:, :, None, None]).trunc().clamp(0, 255)


def lighting_basis(device: torch.device | str = "cpu") -> Tensor:
    """Return ``[3, 3]``, which maps three normals to a shift per channel."""
    vectors = torch.tensor(EIGENVECTORS, dtype=torch.float64)
    values = torch.tensor(EIGENVALUES, dtype=torch.float64)
    return (vectors * values).T.float().contiguous().to(device)
