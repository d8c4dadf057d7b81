"""Pictures as they are meant to be seen, with pixels of 8 bits."""

from pathlib import Path

import numpy as np
from PIL import Image, ImageOps

from surge.errors import ConfigError

CORRUPT = (OSError, SyntaxError, ValueError, EOFError, Image.DecompressionBombError)
"""What Pillow raises for a file that is no image, or no whole one."""


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


def upright(path: Path, mode: str) -> Image.Image:
    """Decode a picture as it is meant to be seen.

    Raises:
        ConfigError: it cannot be read; the message names the file.
    """
    try:
        with Image.open(path) as file:
            return eight_bits(ImageOps.exif_transpose(file)).convert(mode)
    except FileNotFoundError as error:
        raise ConfigError(f"{path} is not there.") from error
    except CORRUPT as error:
        raise ConfigError(f"{path} is not an image that can be read ({error}).") from error
