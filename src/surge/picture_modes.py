"""Pixels of 8 bits, from pictures of any depth."""

import numpy as np
from PIL import Image


def eight_bits(image: Image.Image) -> Image.Image:
    """Return an image whose pixels have 8 bits: where they have 16, Pillow would make them white.

    Raises:
        ValueError: pixels have no known range.
    """
    if image.mode.startswith("I;16"):
        return Image.fromarray((np.asarray(image) / 257.0).round().astype(np.uint8))
    if image.mode in ("I", "F"):
        raise ValueError(f"its pixels, of mode {image.mode}, have no known range")
    return image
