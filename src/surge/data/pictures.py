"""Image files to pixels: decoded by worker processes, kept as one tensor where they fit."""

import hashlib
import os
import tempfile
import warnings
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch
from PIL import Image
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from surge.data.folders import FileSet
from surge.data.imageset import ImageSet
from surge.data.integrity import DamagedDataError
from surge.errors import SurgeWarning
from surge.picture_modes import CORRUPT, eight_bits

CACHE = ".surge-cache"
"""Folder beside ``train`` and ``val`` where decoded images are kept."""
FORMAT = 1
PIECE = 64
"""Images that a worker decodes at a time."""
ALONE = 512
"""Sets up to this size are decoded by the process itself, and not stored."""


class WrongSizeError(DamagedDataError):
    """An image is smaller than the squares that the recipe keeps."""


def read_picture(path: Path) -> Image.Image:
    """Return a file as an RGB image; raises one of ``CORRUPT``."""
    with Image.open(path) as image:
        converted: Image.Image = eight_bits(image).convert("RGB")
    return converted


def central(image: Image.Image, resized: int, side: int) -> Image.Image:
    """Resize the shorter side to ``resized``, then cut a square of ``side`` from the middle."""
    width, height = image.size
    shorter = min(width, height)
    if shorter != resized:
        width, height = (round(length * resized / shorter) for length in (width, height))
        image = image.resize((width, height), Image.Resampling.BILINEAR)
    left, top = round((width - side) / 2), round((height - side) / 2)
    return image.crop((left, top, left + side, top + side))


def as_tensor(image: Image.Image) -> Tensor:
    """Return an image as uint8 ``[3, H, W]``."""
    return torch.from_numpy(np.array(image)).permute(2, 0, 1).contiguous()


class Decoder(Dataset[Any]):
    """Decodes pieces of a set: a task is (indices, draws), the answer (pixels, labels, corrupt).

    An image that cannot be read is replaced by the next one that can, with its label.
    """

    def __init__(
        self, files: FileSet, shape: Callable[[Image.Image, Any, str], Image.Image]
    ) -> None:
        self.files, self.shape = files, shape

    def __getitem__(self, task: tuple[list[int], Any]) -> tuple[Tensor, Tensor, list[int]]:
        indices, draws = task
        corrupt: list[int] = []
        pixels, labels = [], []
        for position, index in enumerate(indices):
            for step in range(len(self.files)):
                place = (index + step) % len(self.files)
                try:
                    image = read_picture(self.files.root / self.files.files[place])
                except CORRUPT:
                    corrupt.append(place)
                    continue
                draw = None if draws is None else draws[position]
                pixels.append(as_tensor(self.shape(image, draw, self.files.files[place])))
                labels.append(self.files.labels[place])
                break
            else:
                raise DamagedDataError(f"No image in {self.files.root} can be read.")
        return torch.stack(pixels), torch.stack(labels), corrupt


def decoded(
    decoder: Dataset[Any], tasks: Iterable[Any], *, workers: int, pinned: bool = False
) -> Iterator[Any]:
    """Yield the answers of all tasks in order, a few ahead of time in worker processes."""
    if workers == 0:
        return map(decoder.__getitem__, tasks)
    loader: DataLoader[Any] = DataLoader(
        decoder,
        batch_size=None,
        sampler=tasks,
        num_workers=workers,
        prefetch_factor=4,
        pin_memory=pinned,
        generator=torch.Generator(),  # else it would draw from the numbers of the steps
    )
    return iter(loader)


class Files(Protocol):
    """A set of image files."""

    @property
    def root(self) -> Path:
        """The folder that they are below."""

    @property
    def files(self) -> tuple[str, ...]:
        """Their paths below it."""

    def __len__(self) -> int: ...


class CorruptCount:
    """Names unreadable files as they are met, and gives up when there are too many."""

    def __init__(self, files: Files) -> None:
        """Allow a thousandth of the set, and at least five."""
        self.files, self.limit = files, max(5, len(files) // 1000)
        self.seen: set[int] = set()

    def add(self, places: Iterable[int]) -> None:
        """Warn about every file once."""
        for place in set(places) - self.seen:
            self.seen.add(place)
            path = self.files.root / self.files.files[place]
            if len(self.seen) > self.limit:
                raise DamagedDataError(
                    f"{path} is unreadable, as are {self.limit} other images in "
                    f"{self.files.root}: more than the {self.limit} that are passed over. Copy "
                    "the data set again."
                )
            warnings.warn(f"{path} is not a readable image: left out.", SurgeWarning, stacklevel=2)


def worker_count(processes: int = 1) -> int:
    """Return how many workers each of the processes on this machine should have."""
    usable = getattr(os, "sched_getaffinity", None)  # not on every system
    cores = len(usable(0)) if usable else os.cpu_count() or 1
    return max(1, cores // max(processes, 1))


def load_pictures(files: FileSet, side: int, workers: int | None = None) -> ImageSet:
    """Return a set as squares of ``side`` pixels: decoded once, then stored beside the tree.

    The shorter side of every image becomes ``side``, the middle is kept. What is stored belongs to
    the list of files with their sizes and times; a damaged store is replaced, one that cannot be
    written left out.

    Raises:
        WrongSizeError: an image is smaller than that.
        DamagedDataError: too many images are unreadable.
    """
    stored = None if len(files) <= ALONE else _store(files, side)
    found = None if stored is None else _read(stored, side)
    images, kept = found if found is not None else _decode(files, side, workers)
    if stored is not None and found is None:
        _write(stored, {"images": images, "kept": kept})
    count = CorruptCount(files)
    count.add(sorted(set(range(len(files))) - set(kept.tolist())))
    return ImageSet(images, files.labels[kept], files.classes, files.normalization)


class _Square:
    """Makes squares of one size; a class, so that worker processes can be given it."""

    def __init__(self, side: int) -> None:
        self.side = side

    def __call__(self, image: Image.Image, draw: Any, name: str) -> Image.Image:
        if min(image.size) < self.side:
            raise WrongSizeError(f"{name}: {image.size[0]}x{image.size[1]}")
        return central(image, self.side, self.side)


def _decode(files: FileSet, side: int, workers: int | None) -> tuple[Tensor, Tensor]:
    workers = 0 if len(files) <= ALONE else workers or worker_count()
    decoder = Decoder(files, _Square(side))
    pieces = [list(range(s, min(s + PIECE, len(files)))) for s in range(0, len(files), PIECE)]
    images = torch.empty(len(files), 3, side, side, dtype=torch.uint8)
    count, broken = CorruptCount(files), set()
    answers = decoded(decoder, [(piece, None) for piece in pieces], workers=workers)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", SurgeWarning)  # load_pictures names them all
            for piece, (pixels, _, corrupt) in zip(pieces, answers, strict=True):
                images[piece[0] : piece[-1] + 1] = pixels
                count.add(corrupt)
                broken.update(corrupt)
    except WrongSizeError as error:
        raise _explained(error, files, side) from None
    kept = torch.tensor([i for i in range(len(files)) if i not in broken], dtype=torch.int64)
    return images[kept] if broken else images, kept


def _explained(error: WrongSizeError, files: FileSet, side: int) -> WrongSizeError:
    # An error that crossed from a worker carries its traceback in front.
    what = str(error).strip().rpartition("WrongSizeError: ")[2].splitlines()[0]
    return WrongSizeError(
        f"{files.root}/{what} is too small: this recipe keeps squares of {side} px, so both sides "
        f"need at least {side}. Use the data set in a larger resolution."
    )


def _store(files: FileSet, side: int) -> Path:
    digest = hashlib.sha256(f"{FORMAT} {side}".encode())
    for name in files.files:
        state = (files.root / name).stat()
        line = f"\n{name} {state.st_size} {state.st_mtime_ns}"
        digest.update(line.encode(errors="surrogateescape"))  # names need not be UTF-8
    name = f"{files.root.name}-{side}-{digest.hexdigest()[:16]}.safetensors"
    return files.root.parent / CACHE / name


def _read(path: Path, side: int) -> tuple[Tensor, Tensor] | None:
    try:
        arrays = load_file(path)
    except (OSError, SafetensorError):
        return None
    if arrays.keys() != {"images", "kept"} or arrays["images"].shape[1:] != (3, side, side):
        return None
    return arrays["images"], arrays["kept"]


def _write(path: Path, arrays: dict[str, Tensor]) -> None:
    """Store atomically; without the right to write here every run decodes for itself."""
    try:
        path.parent.mkdir(exist_ok=True)
        handle, temporary = tempfile.mkstemp(dir=path.parent, suffix=".part")
        os.close(handle)
    except OSError:
        return
    try:
        save_file(arrays, temporary)
        os.chmod(temporary, 0o644)
        os.replace(temporary, path)
    except (OSError, SafetensorError):
        Path(temporary).unlink(missing_ok=True)
