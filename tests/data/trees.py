"""Small ImageFolder trees for tests."""

import numpy as np
from PIL import Image


def picture(height, width, seed=0):
    """A smooth random image: photographs are smooth, and noise would hide nothing."""
    small = np.random.default_rng(seed).integers(0, 256, (5, 6, 3), dtype=np.uint8)
    return Image.fromarray(small).resize((width, height), Image.Resampling.BICUBIC)


def make_tree(root, classes=("ant", "bee", "cat"), train=4, val=2, size=(40, 48), suffix="png"):
    """Write ``train`` and ``val`` below ``root``."""
    number = 0
    for part, count in (("train", train), ("val", val)):
        for name in classes:
            folder = root / part / name
            folder.mkdir(parents=True)
            for index in range(count):
                picture(*size, seed=number).save(folder / f"{index:03d}.{suffix}")
                number += 1
    return root
