"""Batches of photographs: random crops in training, the middle for a test.

:class:`CropLoader` has a set on the device as squares of one size. :class:`StreamLoader` has files:
worker processes decode, crop and resize them some batches ahead, and the rest happens on the
device. Both give the same images for the same (seed, epoch) anywhere, from any batch on.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from PIL import Image
from torch import Tensor

from surge.data.augment import normalize
from surge.data.colours import draw_colours, jitter
from surge.data.crops import (
    MARGIN,
    central_box,
    draw_crops,
    lighten,
    lighting_basis,
    random_boxes,
    resample,
)
from surge.data.folders import FileSet
from surge.data.imageset import ImageSet
from surge.data.loader import ResidentLoader
from surge.data.pictures import ALONE, PIECE, CorruptCount, Decoder, central, decoded, worker_count
from surge.data.plan import EpochPlan, epoch_plan
from surge.errors import ConfigError

STEP = 32
"""The networks for photographs halve the resolution five times."""
FINISH = 7
"""Numbers that finish an image: three for its lighting, four for its colours."""


@dataclass(frozen=True)
class CropSettings:
    """How an image becomes network input."""

    size: int
    """Side of the network's input."""
    train: bool
    """Random crops and flips, or the middle."""
    scale: tuple[float, float] = (0.08, 1.0)
    """Least and largest share of the area of a random crop."""
    lighting: bool = False
    """PCA lighting of random crops."""
    jitter: tuple[float, ...] = ()
    """Largest changes of brightness, contrast, saturation and hue of random crops; () for none."""

    def __post_init__(self) -> None:
        """Check the numbers."""
        if self.size < STEP or self.size % STEP:
            raise ConfigError(
                f"size={self.size} is not accepted: it must be a multiple of {STEP} (--size)."
            )
        if not 0 < self.scale[0] <= self.scale[1]:
            raise ConfigError(f"scale={self.scale} is not accepted: need 0 < least <= largest.")
        if self.jitter and (len(self.jitter) != 4 or not 0 <= min(self.jitter) <= 1):
            raise ConfigError(
                f"jitter={self.jitter} is not accepted: need four numbers from 0 to 1, for "
                "brightness, contrast, saturation and hue."
            )


class CropLoader(ResidentLoader):
    """Crops from squares on the device; ``plan.offsets`` are boxes, three normals, four colours."""

    def __init__(self, dataset: ImageSet, crop: CropSettings, **options: Any) -> None:
        super().__init__(dataset, **options)
        self.crop = crop
        self._basis = lighting_basis(self.device)

    def plan(self, epoch: int) -> EpochPlan:
        """Return order, boxes, flips and lighting of a whole epoch (all ranks), on the device."""
        plan = epoch_plan(self._count, epoch, self.seed, padding=0, shuffle=self.shuffle)
        height, width = self.images.shape[2:]
        flips = plan.flips
        if self.crop.train:
            draws, normals = draw_crops(self._count, epoch, self.seed)
            boxes = random_boxes(draws, height, width, self.crop.scale)
            colours = draw_colours(self._count, epoch, self.seed)
        else:
            (top, down), (left, across) = (central_box(s, self.crop.size) for s in (height, width))
            box = torch.tensor([[top, left, down, across]], dtype=torch.float32)
            boxes, flips = box.repeat(self._count, 1), torch.zeros_like(flips)
            normals, colours = torch.zeros_like(boxes[:, :3]), torch.zeros_like(boxes)
        numbers = torch.cat([boxes, normals, colours], 1)
        return EpochPlan(plan.permutation, numbers, flips).to(self.device)

    def fetch(self, plan: EpochPlan) -> tuple[Tensor, Tensor]:
        """Make the batch for a part of a plan, entirely on the device."""
        images = self.images.index_select(0, plan.permutation)
        boxes, finish = plan.offsets[:, :4], plan.offsets[:, 4:]
        pixels = resample(images, boxes, plan.flips, self.crop.size, whole=not self.crop.train)
        return self._finished(pixels, finish), self.labels.index_select(0, plan.permutation)

    def _finished(self, pixels: Tensor, numbers: Tensor) -> Tensor:
        if self.crop.train and self.crop.jitter:
            pixels = jitter(pixels, numbers[:, 3:], self.crop.jitter)
        if self.crop.train and self.crop.lighting:
            pixels = lighten(pixels, numbers[:, :3], self._basis)
        return normalize(
            pixels, self._scale, self._shift, dtype=self.dtype, memory_format=self.memory_format
        )


class StreamLoader(CropLoader):
    """The same from files. A window on the device holds one batch, which a captured step reads.

    ``workers`` processes decode; 0 decodes where the batch is asked for.
    """

    def __init__(
        self, dataset: FileSet, crop: CropSettings, *, workers: int | None = None, **options: Any
    ) -> None:
        empty = torch.zeros(len(dataset), 3, 1, 1, dtype=torch.uint8)
        super().__init__(
            ImageSet(empty, dataset.labels, dataset.classes, dataset.normalization), crop, **options
        )
        self.files = dataset
        self.workers = self._own_workers() if workers is None else workers
        share = -(-self.batch_size // self.world)
        self.images = torch.zeros(
            share, 3, crop.size, crop.size, dtype=torch.uint8, device=self.device
        )
        self.labels = torch.zeros(share, dtype=torch.int64, device=self.device)
        self.corrupt = CorruptCount(dataset)
        self._decoder = Decoder(dataset, _Shape(crop))
        self._answers: Iterator[Any] = iter(())
        self._next: tuple[int, int] = (-1, -1)

    def _own_workers(self) -> int:
        if len(self.files) <= ALONE:
            return 0
        here = torch.cuda.device_count() if self.device.type == "cuda" else self.world
        return worker_count(min(here, self.world))

    def plan(self, epoch: int) -> EpochPlan:
        """Return the decisions of a whole epoch, on the CPU, where the files are."""
        plan = epoch_plan(self._count, epoch, self.seed, padding=0, shuffle=self.shuffle)
        if not self.crop.train:
            none = torch.zeros(self._count, FINISH, dtype=torch.float32)
            return EpochPlan(plan.permutation, none, torch.zeros_like(plan.flips))
        draws, normals = draw_crops(self._count, epoch, self.seed)
        colours = draw_colours(self._count, epoch, self.seed)
        numbers = torch.cat([normals, colours, draws], dim=1)
        return EpochPlan(plan.permutation, numbers, plan.flips)

    def part(self, plan: EpochPlan, index: int) -> EpochPlan:
        """Put batch ``index`` of this rank into the window; the next ones are decoded meanwhile."""
        if self._next != (id(plan.permutation), index):
            self._answers = iter(())  # ends its workers before others are forked
            tasks = self._tasks(plan, index)
            pinned = self.device.type == "cuda"
            self._answers = decoded(self._decoder, tasks, workers=self.workers, pinned=pinned)
        mine = plan.part(*self.bounds(index))
        for start in range(0, len(mine), PIECE):
            pixels, labels, corrupt = next(self._answers)
            self.corrupt.add(corrupt)
            window = slice(start, start + len(pixels))
            self.images[window].copy_(pixels, non_blocking=True)
            self.labels[window].copy_(labels, non_blocking=True)
        if index + 1 == len(self):
            self._answers = iter(())
        self._next = (id(plan.permutation), index + 1)
        self._plan = plan  # so that no other plan can have its identity
        rows = torch.arange(len(mine), device=self.device)
        finish = mine.offsets[:, :FINISH].to(self.device, non_blocking=True)
        return EpochPlan(rows, finish, mine.flips.to(self.device, non_blocking=True))

    def close(self) -> None:
        """End the workers of an epoch that is left before its last batch."""
        self._answers, self._next = iter(()), (-1, -1)

    def _tasks(self, plan: EpochPlan, first: int) -> Iterator[tuple[list[int], Any]]:
        for index in range(first, len(self)):
            mine = plan.part(*self.bounds(index))
            for start in range(0, len(mine), PIECE):
                piece = mine.part(start, min(start + PIECE, len(mine)))
                draws = piece.offsets[:, FINISH:].clone() if self.crop.train else None
                yield piece.permutation.tolist(), draws

    def fetch(self, plan: EpochPlan) -> tuple[Tensor, Tensor]:
        """Make the batch from the window, entirely on the device."""
        images = self.images.index_select(0, plan.permutation).float()
        images = torch.where(plan.flips[:, None, None, None], images.flip(3), images)
        finished = self._finished(images, plan.offsets)
        return finished, self.labels.index_select(0, plan.permutation)


class _Shape:
    """Crops and resizes one decoded image; a class, so that worker processes can be given it."""

    def __init__(self, crop: CropSettings) -> None:
        self.crop = crop

    def __call__(self, image: Image.Image, draw: Tensor | None, name: str) -> Image.Image:
        size = self.crop.size
        if draw is None:
            return central(image, round(size * MARGIN), size)
        width, height = image.size
        box = random_boxes(draw[None], height, width, self.crop.scale)[0]
        top, left, down, across = (int(value) for value in box)
        cut = image.crop((left, top, left + across, top + down))
        return cut.resize((size, size), Image.Resampling.BILINEAR)
