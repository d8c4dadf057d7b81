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


def make_voc(root, objects, year="2007", part="trainval", size=(48, 64)):
    """Write ``VOCdevkit`` below ``root``: per image a list of (name, xmin, ymin, xmax, ymax, ...).

    ``size`` is (height, width); a sixth number of an object is its difficult flag.
    """
    base = root / "VOCdevkit" / f"VOC{year}"
    for folder in ("JPEGImages", "Annotations", "ImageSets/Main"):
        (base / folder).mkdir(parents=True, exist_ok=True)
    height, width = size
    names = [f"{number:06d}" for number in range(1, len(objects) + 1)]
    for number, (name, things) in enumerate(zip(names, objects, strict=True)):
        picture(height, width, seed=number).save(base / "JPEGImages" / f"{name}.jpg")
        written = "".join(
            f"<object><name>{kind}</name><difficult>{hard[0] if hard else 0}</difficult><bndbox>"
            f"<xmin>{x1}</xmin><ymin>{y1}</ymin><xmax>{x2}</xmax><ymax>{y2}</ymax></bndbox></object>"
            for kind, x1, y1, x2, y2, *hard in things
        )
        (base / "Annotations" / f"{name}.xml").write_text(
            f"<annotation><size><width>{width}</width><height>{height}</height></size>"
            f"{written}</annotation>"
        )
    (base / "ImageSets" / "Main" / f"{part}.txt").write_text("\n".join(names) + "\n")
    return base


THINGS = [
    [("dog", 1, 1, 32, 24), ("person", 10, 5, 64, 48, 1)],
    [("car", 3, 4, 60, 40)],
    [],
    [("cat", 20, 10, 50, 45)],
]
"""Objects in four images for :func:`make_voc`; the last number of one says that it is difficult."""
