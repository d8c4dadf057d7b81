"""Random changes of colour as batched tensor code: brightness, contrast, saturation, hue.

Every image has four numbers in [-1, 1), drawn on the CPU before an epoch. Changes come in this
order, where torchvision draws an order for every image.
"""

import hashlib

import torch
from torch import Tensor

GREY = (0.299, 0.587, 0.114)
"""Weights of the channels in the brightness that is seen."""


def draw_colours(count: int, epoch: int, seed: int) -> Tensor:
    """Return ``[n, 4]`` in [-1, 1), for every position of an epoch."""
    digest = hashlib.sha256(f"colours of epoch {epoch} of seed {seed}".encode()).digest()
    generator = torch.Generator().manual_seed(int.from_bytes(digest[:4], "little"))
    return 2 * torch.rand(count, 4, generator=generator, dtype=torch.float32) - 1


def jitter(images: Tensor, draws: Tensor, strengths: tuple[float, ...]) -> Tensor:
    """Change the colours of ``[N, 3, H, W]`` in 0..255 by up to ``strengths``.

    Brightness, contrast and saturation are factors around 1; hue is a part of the whole circle.
    """
    brightness, contrast, saturation = (
        1 + strength * draws[:, place, None, None, None]
        for place, strength in enumerate(strengths[:3])
    )
    images = (images * brightness).clamp(0, 255)
    mean = _grey(images).mean(dim=(2, 3), keepdim=True)
    images = (mean + contrast * (images - mean)).clamp(0, 255)
    grey = _grey(images)
    images = (grey + saturation * (images - grey)).clamp(0, 255)
    if not strengths[3]:
        return images
    return rotate_hue(images, strengths[3] * draws[:, 3, None, None])


def _grey(images: Tensor) -> Tensor:
    # Numbers of the host, not a tensor of them: a captured step cannot copy one.
    red, green, blue = (weight * images[:, place] for place, weight in enumerate(GREY))
    return (red + green + blue).unsqueeze(1)


def rotate_hue(images: Tensor, turn: Tensor) -> Tensor:
    """Turn the hue of every pixel by a part of the circle; value and saturation stay."""
    red, green, blue = images.unbind(1)
    value, low = images.amax(1), images.amin(1)
    chroma = value - low
    safe = chroma.clamp(min=1e-6)
    sixth = torch.where(
        value == red,
        (green - blue) / safe,
        torch.where(value == green, 2 + (blue - red) / safe, 4 + (red - green) / safe),
    )
    sixth = torch.where(chroma > 0, sixth, 0.0) + 6 * turn
    channels = []
    for offset in (5, 3, 1):
        place = torch.remainder(sixth + offset, 6)
        channels.append(value - chroma * torch.minimum(place, 4 - place).clamp(0, 1))
    return torch.stack(channels, dim=1)
