"""CIFAR-10 in either of its official layouts, checked against the official checksums.

``<root>/cifar-10-batches-bin`` is the binary version: six files of 10,000 records, each a label
byte and 3,072 pixel bytes (red, green, blue planes of 32x32). ``<root>/cifar-10-batches-py`` is
the Python version: the same images in pickles (:mod:`surge.data.pickled`).
"""

import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from shlex import quote

import numpy as np
import torch
from torch import Tensor

from surge.data.imageset import IMAGENET, ImageSet
from surge.data.integrity import DamagedDataError, check_digest
from surge.data.pickled import read_pickled_records
from surge.errors import ConfigError, DataNotFoundError

URL = "https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz"
"""Where the authors publish the binary version."""

CLASSES = (
    "airplane",
    "automobile",
    "bird",
    "cat",
    "deer",
    "dog",
    "frog",
    "horse",
    "ship",
    "truck",
)
"""Class names in label order."""

RECORDS = 10_000
"""Images in each of the six files."""

RECORD_BYTES = 1 + 3 * 32 * 32
"""A label byte and the pixels."""

SHA256 = {
    "data_batch_1": "cee916563c9f80d84e3cc88e17fdc0941787f1244f00a67874d45b261883ada5",
    "data_batch_2": "a591ca11fa1708a91ee40f54b3da4784ccd871ecf2137de63f51ada8b3fa57ed",
    "data_batch_3": "bbe8596564c0f86427f876058170b84dac6670ddf06d79402899d93ceea26f67",
    "data_batch_4": "014e562d6e23c72197cc727519169a60359f5eccd8945ad5a09d710285ff4e48",
    "data_batch_5": "755304fc0b379caeae8c14f0dac912fbc7d6cd469eb67a1029a08a39453a9add",
    "test_batch": "8e2eb146ae340b09e24670f29cabc6326dba54da8789dab6768acf480273f65b",
}
"""Checksums of the binary files. The pickles hold the same records, so these fit both layouts."""

_SPLITS = {
    "train": tuple(f"data_batch_{number}" for number in range(1, 6)),
    "test": ("test_batch",),
}


@dataclass(frozen=True)
class Layout:
    """One of the two official ways the files are laid out."""

    folder: str
    """Name of the folder below the data root."""
    suffix: str
    """What follows the batch name."""
    read: Callable[[Path], bytes]
    """Returns a file's content as binary records."""


BINARY = Layout("cifar-10-batches-bin", ".bin", Path.read_bytes)
"""The binary version."""

PICKLED = Layout("cifar-10-batches-py", "", read_pickled_records)
"""The Python version."""


def load_cifar10(root: str | Path, split: str, *, verify: bool = True) -> ImageSet:
    """Read the ``"train"`` (50,000 images) or ``"test"`` (10,000) part.

    Args:
        root: the folder that holds ``cifar-10-batches-bin`` or ``cifar-10-batches-py``; the
            binary version is preferred where both are complete.
        split: which part.
        verify: compare checksums (about 0.1 s per file). Size and labels are always checked.

    Raises:
        DataNotFoundError: a file is missing; the message says which and how to get it.
        DamagedDataError: a file is truncated, altered or holds an impossible label.
    """
    if split not in _SPLITS:
        raise ConfigError(f'split={split!r} is not known. Accepted: "train", "test".')
    names = _SPLITS[split]
    layout = _find_layout(Path(root), names)
    batches = []
    for name in names:
        path = Path(root) / layout.folder / f"{name}{layout.suffix}"
        content = layout.read(path)
        if verify and len(content) == RECORDS * RECORD_BYTES:
            found = hashlib.sha256(content).hexdigest()
            check_digest(path, expected=SHA256[name], found=found)
        batches.append(parse_records(content, path))
    images, labels = (torch.cat(parts) for parts in zip(*batches, strict=True))
    return ImageSet(images, labels, CLASSES, IMAGENET)


def parse_records(content: bytes, path: Path, *, count: int = RECORDS) -> tuple[Tensor, Tensor]:
    """Turn ``count`` binary records into images ``[N, 3, 32, 32]`` and labels.

    ``path`` is where they came from, for error messages.

    >>> images, labels = parse_records(bytes([7]) + bytes(3072), Path("one.bin"), count=1)
    >>> list(images.shape), labels.tolist()
    ([1, 3, 32, 32], [7])
    """
    if len(content) != count * RECORD_BYTES:
        raise DamagedDataError(
            f"{path} holds {len(content):,} bytes of records, expected {count * RECORD_BYTES:,} "
            f"({count:,} of {RECORD_BYTES:,}). Delete it and fetch it again."
        )
    records = np.frombuffer(content, dtype=np.uint8).reshape(count, RECORD_BYTES)
    wrong = np.flatnonzero(records[:, 0] >= len(CLASSES))
    if len(wrong):
        record = int(wrong[0])
        raise DamagedDataError(
            f"{path}: record {record} has label {records[record, 0]}, "
            f"expected 0 to {len(CLASSES) - 1}. Delete the file and fetch it again."
        )
    labels = torch.from_numpy(records[:, 0].astype(np.int64))
    images = torch.from_numpy(records[:, 1:].reshape(count, 3, 32, 32).copy())
    return images, labels


def _find_layout(root: Path, names: tuple[str, ...]) -> Layout:
    """Return the layout whose files are all there, or say which one is missing."""
    missing = {layout.folder: _missing(root, layout, names) for layout in (BINARY, PICKLED)}
    for layout in (BINARY, PICKLED):
        if not missing[layout.folder]:
            return layout
    # A folder that was begun tells which layout the user meant.
    begun = PICKLED if (root / PICKLED.folder).is_dir() else BINARY
    layout = BINARY if (root / BINARY.folder).is_dir() else begun
    first, *others = missing[layout.folder]
    more = f" (and {len(others)} more beside it)" if others else ""
    command = f"surge data cifar10 --data {quote(str(root))}"
    raise DataNotFoundError(
        f"CIFAR-10 is not complete in {root}: {first} is missing{more}. "
        f"Run `{command}` to download it, or unpack {URL} in {root}."
    )


def _missing(root: Path, layout: Layout, names: tuple[str, ...]) -> list[Path]:
    paths = [root / layout.folder / f"{name}{layout.suffix}" for name in names]
    return [path for path in paths if not path.is_file()]
