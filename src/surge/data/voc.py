"""PASCAL VOC: images, boxes and class names from the official folders, of one year or several.

``VOCdevkit/VOC2007/{JPEGImages,Annotations,ImageSets/Main}``. What is not in order:

- a list, an annotation, or every year is missing: an error that names it;
- a class that VOC does not have: an error;
- a box reaches beyond the image: cut off; nothing is left of it: left out, with a warning;
- an image without objects: kept, all of it is background;
- an image that cannot be read: see :func:`~surge.data.voc_loader.decode`.
"""

import warnings
import xml.etree.ElementTree as ET
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import Tensor

from surge.data.imageset import IMAGENET, Normalization
from surge.data.integrity import DamagedDataError
from surge.errors import DataNotFoundError, SurgeWarning, did_you_mean

CLASSES = (
    *("aeroplane", "bicycle", "bird", "boat", "bottle", "bus", "car", "cat", "chair", "cow"),
    *("diningtable", "dog", "horse", "motorbike", "person", "pottedplant", "sheep", "sofa"),
    *("train", "tvmonitor"),
)
"""The 20 kinds of objects; the first has label 1, because 0 is the background."""
YEARS = ("2007", "2012")
"""Whose ``trainval`` the published detectors learn from."""
FOLDER = "VOCdevkit"


@dataclass(frozen=True, eq=False)
class BoxSet:
    """The files of one part, and what is in them; nothing is decoded yet."""

    root: Path
    """The folder that ``files`` are below."""
    files: tuple[str, ...]
    """Images, in the order of the lists."""
    boxes: tuple[Tensor, ...]
    """Per image float32 ``[n, 4]``: x1, y1, x2, y2 in pixels, the edges of the image 0 and size."""
    labels: tuple[Tensor, ...]
    """Per image int64 ``[n]``, from 1 on."""
    difficult: tuple[Tensor, ...]
    """Per image bool ``[n]``: neither learned nor counted."""
    sizes: tuple[tuple[int, int], ...]
    """Per image (width, height)."""
    classes: tuple[str, ...] = CLASSES
    """Name of label 1, 2, ..."""
    normalization: Normalization = IMAGENET
    """How pixels become network input."""

    def __len__(self) -> int:
        return len(self.files)

    def subset(self, indices: Sequence[int]) -> "BoxSet":
        """Return the images at ``indices``, in that order."""
        return replace(
            self,
            files=tuple(self.files[i] for i in indices),
            boxes=tuple(self.boxes[i] for i in indices),
            labels=tuple(self.labels[i] for i in indices),
            difficult=tuple(self.difficult[i] for i in indices),
            sizes=tuple(self.sizes[i] for i in indices),
        )

    def truth(self, index: int) -> dict[str, Tensor]:
        """Return what the metric needs to know of an image."""
        return {
            "boxes": self.boxes[index],
            "labels": self.labels[index],
            "difficult": self.difficult[index],
        }


def find_voc(root: Path) -> Path:
    """Return the folder with the years: ``VOCdevkit`` below root, or root itself.

    Raises:
        DataNotFoundError: no year is there; the message says where it was looked for.
    """
    for folder in (root / FOLDER, root):
        if any((folder / f"VOC{year}").is_dir() for year in YEARS):
            return folder
    names = " or ".join(f"VOC{year}" for year in YEARS)
    raise DataNotFoundError(
        f"No PASCAL VOC in {root}: neither {root / FOLDER} nor {root} itself has a folder {names}. "
        "Name its place with --data."
    )


def load_voc(root: Path, part: str, years: Sequence[str] = YEARS) -> BoxSet:
    """Return a part (``trainval``, ``test``, ...) of all the years that are there, as one set.

    Raises:
        DataNotFoundError: no year, no list of that name, or an annotation is not there.
        DamagedDataError: an annotation cannot be understood.
    """
    folder = find_voc(root)
    there = [year for year in years if (folder / f"VOC{year}").is_dir()]
    if not there:
        raise DataNotFoundError(
            f"{folder} has none of the years asked for ({', '.join(years)}). Years there: "
            f"{', '.join(sorted(p.name for p in folder.glob('VOC*')))}."
        )
    files: list[str] = []
    found: list[_Annotation] = []
    for year in there:
        base = folder / f"VOC{year}"
        for name in _names(base, part):
            files.append(f"VOC{year}/JPEGImages/{name}.jpg")
            found.append(_read(base / "Annotations" / f"{name}.xml"))
    empty = [file for file, a in zip(files, found, strict=True) if a.lost]
    if empty:
        warnings.warn(
            f"{sum(a.lost for a in found)} boxes lie outside their image, as in {empty[0]}: left "
            "out.",
            SurgeWarning,
            stacklevel=2,
        )
    return BoxSet(
        folder,
        tuple(files),
        tuple(a.boxes for a in found),
        tuple(a.labels for a in found),
        tuple(a.difficult for a in found),
        tuple(a.size for a in found),
    )


@dataclass(frozen=True, eq=False)
class _Annotation:
    size: tuple[int, int]
    boxes: Tensor
    labels: Tensor
    difficult: Tensor
    lost: int


def _names(base: Path, part: str) -> list[str]:
    lists = base / "ImageSets" / "Main"
    path = lists / f"{part}.txt"
    if not path.is_file():
        known = sorted(file.stem for file in lists.glob("*.txt"))
        raise DataNotFoundError(
            f"{path} is missing: {base.name} has no list of that name.{did_you_mean(part, known)} "
            f"Lists there: {', '.join(known) or 'none'}."
        )
    names = [line.split()[0] for line in path.read_text().splitlines() if line.split()]
    if not names:
        raise DamagedDataError(f"{path} is empty: it must hold one image name per line.")
    return names


def _read(path: Path) -> _Annotation:
    try:
        tree = ET.parse(path).getroot()
    except FileNotFoundError as error:
        raise DataNotFoundError(
            f"{path} is missing: every image of a list needs an annotation. Copy the data set "
            "again, or take the name out of the list."
        ) from error
    except (ET.ParseError, OSError) as error:
        raise DamagedDataError(f"{path} is no annotation: {error}. Copy it again.") from error
    try:
        return _understood(tree)
    except _Unclear as error:
        raise DamagedDataError(f"{path}: {error}") from None


class _Unclear(Exception):
    """An annotation does not say what it must."""


def _understood(tree: ET.Element) -> _Annotation:
    width, height = (int(_number(tree, f"size/{side}")) for side in ("width", "height"))
    if min(width, height) < 1:
        raise _Unclear(f"the image is said to be {width}x{height}.")
    boxes, labels, difficult, lost = [], [], [], 0
    for thing in tree.iter("object"):
        name = (thing.findtext("name") or "").strip()
        if name not in CLASSES:
            raise _Unclear(
                f'VOC has no class "{name}".{did_you_mean(name, CLASSES)} '
                f"Classes: {', '.join(CLASSES)}."
            )
        # Stored are whole pixels counted from 1, the last one included.
        x1, y1, x2, y2 = (_number(thing, f"bndbox/{k}") for k in ("xmin", "ymin", "xmax", "ymax"))
        x1, y1, x2, y2 = max(x1 - 1, 0), max(y1 - 1, 0), min(x2, width), min(y2, height)
        if x2 <= x1 or y2 <= y1:
            lost += 1
            continue
        boxes.append((x1, y1, x2, y2))
        labels.append(1 + CLASSES.index(name))
        difficult.append((thing.findtext("difficult") or "0").strip() == "1")
    return _Annotation(
        (width, height),
        torch.tensor(boxes, dtype=torch.float32).reshape(-1, 4),
        torch.tensor(labels, dtype=torch.int64),
        torch.tensor(difficult, dtype=torch.bool),
        lost,
    )


def _number(element: ET.Element, place: str) -> float:
    text = element.findtext(place)
    try:
        return float(text or "")
    except ValueError:
        raise _Unclear(f"{place} is {text!r}, not a number.") from None
