"""Images with boxes: decoded once, then resized and mirrored on the device, batch by batch."""

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from surge.data.batch import Batch, padded
from surge.data.integrity import DamagedDataError
from surge.data.loader import ResidentLoader
from surge.data.pictures import CorruptCount, as_tensor, read_picture, worker_count
from surge.data.plan import EpochPlan, epoch_plan
from surge.data.resizing import filters, resized
from surge.data.voc import BoxSet
from surge.errors import ConfigError
from surge.picture_modes import CORRUPT

Scale = tuple[int, int]
"""Most pixels of the longer and of the shorter side."""
SHORTER = 0.6
"""The shorter side of an image has at most this share of the longer side's most pixels."""
ON_DEVICE = 4 << 30
"""Bytes of pixels up to which a whole set lives on the device."""


def fitted(size: tuple[int, int], scale: Scale) -> tuple[int, int]:
    """Return the (width, height) to which an image grows or shrinks, its ratio kept.

    >>> fitted((500, 375), (1000, 600))
    (800, 600)
    """
    longer, shorter = max(size), min(size)
    factor = min(max(scale) / longer, min(scale) / shorter)
    width, height = (max(1, round(side * factor)) for side in size)
    return width, height


def scale_of(size: float) -> Scale:
    """Return the box into which images are fitted, from the most pixels of their longer side.

    >>> scale_of(1000)
    (1000, 600)
    """
    return round(size), round(SHORTER * size)


@dataclass(frozen=True, eq=False)
class DecodedSet:
    """The images of a part as pixels, in the order of their files."""

    files: BoxSet
    pixels: tuple[Tensor, ...]
    """Per image uint8 ``[3, H, W]``."""

    def __len__(self) -> int:
        return len(self.files)

    @property
    def classes(self) -> tuple[str, ...]:
        """Name of label 1, 2, ..."""
        return self.files.classes

    @property
    def empty(self) -> int:
        """How many images have no object to learn."""
        return sum(bool(difficult.all()) for difficult in self.files.difficult)


def decode(files: BoxSet, workers: int | None = None) -> DecodedSet:
    """Read every image of a set; unreadable ones are left out, and named in a warning.

    Raises:
        DamagedDataError: too many are unreadable, or one has another size than its annotation says.
    """

    def read(name: str) -> Tensor | None:
        try:
            return as_tensor(read_picture(files.root / name))
        except CORRUPT:
            return None

    # Pillow decodes outside Python's lock.
    with ThreadPoolExecutor(workers or worker_count()) as pool:
        pictures = list(pool.map(read, files.files))
    CorruptCount(files).add([place for place, found in enumerate(pictures) if found is None])
    kept = [place for place, found in enumerate(pictures) if found is not None]
    if not kept:
        raise DamagedDataError(f"No image in {files.root} can be read.")
    pixels = [picture for picture in pictures if picture is not None]
    whole = files.subset(kept)
    for name, size, picture in zip(whole.files, whole.sizes, pixels, strict=True):
        width, height = picture.shape[2], picture.shape[1]
        if (width, height) != size:
            raise DamagedDataError(
                f"{files.root / name} has {width}x{height} pixels, its annotation says "
                f"{size[0]}x{size[1]}: the boxes would not fit."
            )
    return DecodedSet(whole, tuple(pixels))


class BoxLoader(ResidentLoader):
    """Batches of images with boxes; a batch's labels are the places of its images in the set.

    ``fetch`` returns ((images, targets), places): a padded batch of images, and per image the boxes
    in its pixels. The plan stays on the CPU, where sizes are needed; pixels live on the device
    unless there are very many. A batch is made as a whole, and takes one copy to the device.
    """

    def __init__(
        self,
        dataset: DecodedSet,
        scales: Sequence[Scale],
        *,
        batch_size: int,
        device: torch.device | str,
        seed: int = 0,
        train: bool = False,
        mirror: bool = False,
        repeat: int = 1,
        dtype: torch.dtype = torch.float32,
        memory_format: torch.memory_format = torch.contiguous_format,
    ) -> None:
        for scale in scales:
            if min(scale) < 32:
                raise ConfigError(f"Images within {scale[0]}x{scale[1]} are too small (--size).")
        self.batch_size, self.seed, self.shuffle = batch_size, seed, train
        self.drop_last, self.rank, self.world = False, 0, 1
        self.augmentation, self.dtype, self.memory_format = None, dtype, memory_format
        self.scales, self.mirror = tuple(scales), mirror
        self._images = len(dataset)
        self._count = len(dataset) * repeat
        self._check()
        self.device = torch.device(device)
        self.classes = dataset.classes
        self.files = dataset.files
        self.pixels = dataset.pixels
        width, height = (max(side) for side in zip(*self.files.sizes, strict=True))
        few = 3 * width * height * len(dataset) <= ON_DEVICE
        self._resident = stacked(self.pixels).to(self.device) if few else None
        self._scale, self._shift = dataset.files.normalization.constants(self.device)
        easy = [~difficult for difficult in self.files.difficult]
        self._boxes = [b[kept] for b, kept in zip(self.files.boxes, easy, strict=True)]
        self._labels = [b[kept] for b, kept in zip(self.files.labels, easy, strict=True)]

    def plan(self, epoch: int) -> EpochPlan:
        """Return order, scales and mirroring of an epoch, on the CPU."""
        plan = epoch_plan(self._count, epoch, self.seed, padding=0, shuffle=self.shuffle)
        draws = epoch_plan(self._count, epoch, self.seed, padding=32768, shuffle=False).offsets
        scales = draws % len(self.scales)
        flips = plan.flips if self.mirror else torch.zeros_like(plan.flips)
        return EpochPlan(plan.permutation % self._images, scales, flips)

    def fetch(self, plan: EpochPlan) -> tuple[Any, Tensor]:
        """Make the batch for a part of a plan; what is decided here travels there in one piece."""
        places, scales = plan.permutation.tolist(), plan.offsets[:, 0].tolist()
        sizes = [
            fitted(self.files.sizes[place], self.scales[scale])
            for place, scale in zip(places, scales, strict=True)
        ]
        flips = plan.flips.tolist()
        shapes = [
            (place, *self.files.sizes[place], *size, flip)
            for place, size, flip in zip(places, sizes, flips, strict=True)
        ]
        counts = [len(self._labels[place]) for place in places]
        boxes = self._moved_boxes(places, sizes, flips, counts)
        labels = torch.cat([self._labels[place] for place in places])
        flat = torch.cat(
            [torch.tensor(shapes).double().flatten(), boxes.double().flatten(), labels]
        )
        there = flat.to(self.device, non_blocking=True)
        ends = [len(shapes) * 6, 4 * len(labels), len(labels)]
        numbers, corners, kinds = torch.split(there, ends)
        order, *sides = numbers.view(-1, 6).long().unbind(dim=1)
        images = self._shaped(places, order, sides, sizes)
        parts = zip(
            torch.split(corners.view(-1, 4).float(), counts),
            torch.split(kinds.long(), counts),
            strict=True,
        )
        return (images, [{"boxes": b, "labels": kind} for b, kind in parts]), order

    def _shaped(
        self, places: list[int], order: Tensor, sides: list[Tensor], sizes: list[tuple[int, int]]
    ) -> Batch:
        """Return the images of a batch, resized, mirrored and normalised."""
        if self._resident is None:
            pixels = stacked([self.pixels[place] for place in places])
            pixels = pixels.to(self.device, non_blocking=True)
        else:
            pixels = self._resident.index_select(0, order)
        old_width, old_height, width, height, mirrored = sides
        wide, high = (padded(max(side)) for side in zip(*sizes, strict=True))
        upright = torch.zeros_like(mirrored)
        columns = filters(old_width, width, pixels.shape[3], wide, mirrored > 0, self.dtype)
        rows = filters(old_height, height, pixels.shape[2], high, upright > 0, self.dtype)
        # Of the padding a filter takes nothing, and its sum is zero: so is the shift there.
        inside = (rows.sum(dim=2)[:, :, None] * columns.sum(dim=2)[:, None]).round()[:, None]
        images = resized(pixels.to(self.dtype), rows, columns) * self._scale + self._shift * inside
        images = images.contiguous(memory_format=self.memory_format)
        return Batch(images, [(size[1], size[0]) for size in sizes])

    def _moved_boxes(
        self,
        places: list[int],
        sizes: list[tuple[int, int]],
        flips: list[bool],
        counts: list[int],
    ) -> Tensor:
        """Return the boxes of all images of a batch in their new pixels, one after the other."""
        owner = torch.tensor([n for n, count in enumerate(counts) for _ in range(count)]).long()
        pairs = zip(places, sizes, strict=True)
        factors = torch.tensor(
            [_ratios(self.files.sizes[place], size) for place, size in pairs], dtype=torch.float32
        )
        boxes = torch.cat([self._boxes[place] for place in places]) * factors[owner]
        width = torch.tensor([size[0] for size in sizes])[owner]
        turned = torch.stack(
            [width - boxes[:, 2], boxes[:, 1], width - boxes[:, 0], boxes[:, 3]], dim=1
        )
        return torch.where(torch.tensor(flips)[owner][:, None], turned, boxes)

    def factors(self, place: int) -> Tensor:
        """Return by what boxes of an image are multiplied in a test, ``[4]``."""
        old = self.files.sizes[place]
        return torch.tensor(_ratios(old, fitted(old, self.scales[0])), dtype=torch.float32)


def _ratios(old: tuple[int, int], new: tuple[int, int]) -> list[float]:
    return [new[0] / old[0], new[1] / old[1]] * 2


def stacked(pictures: Sequence[Tensor]) -> Tensor:
    """Return pictures ``[3, H, W]`` as one tensor, with zeros where one is smaller than others."""
    height, width = (max(picture.shape[axis] for picture in pictures) for axis in (1, 2))
    together = pictures[0].new_zeros(len(pictures), 3, height, width)
    for place, picture in zip(together, pictures, strict=True):
        place[:, : picture.shape[1], : picture.shape[2]] = picture
    return together
