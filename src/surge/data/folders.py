"""ImageFolder trees: ``train`` and ``val``, in each one folder of images per class."""

import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import Tensor

from surge.data.imageset import IMAGENET, Normalization
from surge.data.integrity import DamagedDataError
from surge.errors import DataNotFoundError

SUFFIXES = (".bmp", ".jpeg", ".jpg", ".png", ".webp")
"""Endings of image files, in any case."""

IMAGENETTE = (
    *("tench", "English springer", "cassette player", "chain saw", "church"),
    *("French horn", "garbage truck", "gas pump", "golf ball", "parachute"),
)
"""What Imagenette's ten class folders show, in their order."""


@dataclass(frozen=True, eq=False)
class FileSet:
    """The image files of one part, with their labels; nothing is decoded yet."""

    root: Path
    """The part's folder."""
    files: tuple[str, ...]
    """Paths below ``root``, class by class, sorted."""
    labels: Tensor
    """int64 ``[N]``."""
    classes: tuple[str, ...]
    """Names of the class folders, sorted."""
    normalization: Normalization = IMAGENET
    """How pixels become network input."""

    def __len__(self) -> int:
        return len(self.files)

    def subset(self, indices: Tensor) -> "FileSet":
        """Return the files at ``indices``, in that order."""
        files = tuple(self.files[index] for index in indices.tolist())
        return replace(self, files=files, labels=self.labels[indices])

    def first(self, count: int) -> "FileSet":
        """Return ``count`` files: the first of every class in turn, then the second, and so on."""
        places = torch.zeros_like(self.labels)
        for label in range(len(self.classes)):
            mine = self.labels == label
            places[mine] = torch.arange(int(mine.sum()))
        order = torch.argsort(places * len(self.classes) + self.labels, stable=True)
        return self.subset(order[:count])


def find_tree(root: Path, names: Sequence[str]) -> Path:
    """Return the folder with ``train`` and ``val``: one of ``names`` below root, or root itself.

    Raises:
        DataNotFoundError: there is none; the message says where it was looked for.
    """
    for folder in (*(root / name for name in names), root):
        if (folder / "train").is_dir() and (folder / "val").is_dir():
            return folder
    places = ", ".join(str(root / name) for name in names)
    raise DataNotFoundError(
        f"No image tree in {root}: none of {places} and {root} itself has the folders train and "
        "val, with one folder of images per class in each. Name its place with --data."
    )


def scan_tree(folder: Path) -> tuple[FileSet, FileSet]:
    """Return the files of ``train`` and ``val``, which must have the same classes.

    Raises:
        DataNotFoundError: no class folders at all.
        DamagedDataError: a class folder is missing in one part, or holds no images.
    """
    train, val = _scan(folder / "train"), _scan(folder / "val")
    for ours, other, lacking in ((train, val, "val"), (val, train, "train")):
        missing = sorted(set(ours.classes) - set(other.classes))
        if missing:
            raise DamagedDataError(
                f'{folder / lacking} lacks the class folder "{missing[0]}" that {ours.root} has '
                f"({len(missing)} of {len(ours.classes)} missing). Both parts need the same "
                "classes: add the folder, or remove it from the other part."
            )
    return train, val


def _scan(part: Path) -> FileSet:
    classes = sorted(entry.name for entry in os.scandir(part) if _visible_folder(entry))
    if not classes:
        raise DataNotFoundError(
            f"{part} has no class folders: expected one folder of images per class."
        )
    files: list[str] = []
    labels: list[int] = []
    for label, name in enumerate(classes):
        entries = os.scandir(part / name)
        found = sorted(e.name for e in entries if e.name.lower().endswith(SUFFIXES))
        if not found:
            raise DamagedDataError(
                f"{part / name} holds no images ({', '.join(SUFFIXES)}): a class without images "
                "cannot be trained or tested. Fill the folder, or remove it from train and val."
            )
        files += [f"{name}/{file}" for file in found]
        labels += [label] * len(found)
    return FileSet(part, tuple(files), torch.tensor(labels), tuple(classes))


def _visible_folder(entry: "os.DirEntry[str]") -> bool:
    return entry.is_dir() and not entry.name.startswith(".")
