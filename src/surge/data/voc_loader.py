"""Batches of images with boxes: one of several sizes picked per image, mirrored, normalised."""

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from PIL import Image
from torch import Tensor
from torch.utils.data import Dataset

from surge.data.integrity import DamagedDataError
from surge.data.pictures import (
    CORRUPT,
    CorruptCount,
    as_tensor,
    decoded,
    read_picture,
    worker_count,
)
from surge.data.plan import epoch_plan
from surge.data.voc import BoxSet
from surge.errors import ConfigError

Scale = tuple[int, int]
"""Most pixels of the longer and of the shorter side."""
SCALES: tuple[Scale, ...] = ((1500, 900), (1000, 600), (666, 400))
"""Of the published recipe, in training; a test has the middle one."""
SMALL_SCALES: tuple[Scale, ...] = ((750, 450), (500, 300), (333, 200))
"""Half of them, for images whose longer side has 300 pixels."""
ALONE = 64
"""Sets up to this size are decoded by the process itself."""


@dataclass(frozen=True)
class BoxView:
    """How an image becomes network input."""

    scales: tuple[Scale, ...] = SCALES
    """One of them is picked for every image of a training epoch; a test has one alone."""
    train: bool = True
    """Mirror half of the images, and leave difficult objects out."""

    def __post_init__(self) -> None:
        """Check the sizes."""
        if not self.scales or any(min(scale) < 32 for scale in self.scales):
            raise ConfigError(f"scales={self.scales} is not accepted: sides of at least 32 pixels.")
        if not self.train and len(self.scales) > 1:
            raise ConfigError(f"A test has one scale; scales={self.scales}.")


def fitted(size: tuple[int, int], scale: Scale) -> tuple[int, int]:
    """Return the (width, height) to which an image grows or shrinks, its ratio kept.

    >>> fitted((500, 375), (1000, 600))
    (800, 600)
    """
    longer, shorter = max(size), min(size)
    factor = min(max(scale) / longer, min(scale) / shorter)
    width, height = (max(1, round(side * factor)) for side in size)
    return width, height


def shaped(image: Image.Image, scale: Scale, *, mirrored: bool = False) -> Tensor:
    """Return an image in its new size, mirrored or not, as uint8 ``[3, H, W]``."""
    resized = image.resize(fitted(image.size, scale), Image.Resampling.BILINEAR)
    pixels = as_tensor(resized)
    return pixels.flip(2) if mirrored else pixels


def moved(boxes: Tensor, old: tuple[int, int], new: tuple[int, int], *, mirrored: bool) -> Tensor:
    """Return boxes ``[n, 4]`` where they are after :func:`shaped`; sizes are (width, height)."""
    factors = torch.tensor([new[0] / old[0], new[1] / old[1]] * 2, dtype=torch.float32)
    x1, y1, x2, y2 = (boxes * factors).unbind(1)
    if mirrored:
        x1, x2 = new[0] - x2, new[0] - x1
    return torch.stack([x1, y1, x2, y2], dim=1)


class _Pictures(Dataset[Any]):
    """Decodes batches: a task is a list of (index, scale, mirrored)."""

    def __init__(self, files: BoxSet, view: BoxView) -> None:
        self.files, self.view = files, view

    def __getitem__(
        self, task: Sequence[tuple[int, int, bool]]
    ) -> tuple[list[Tensor], list[dict[str, Tensor]], list[int]]:
        corrupt: list[int] = []
        images: list[Tensor] = []
        targets: list[dict[str, Tensor]] = []
        for index, scale, mirrored in task:
            # In training the next readable image stands in; in a test it would count twice.
            for step in range(len(self.files) if self.view.train else 1):
                place = (index + step) % len(self.files)
                try:
                    image = read_picture(self.files.root / self.files.files[place])
                except CORRUPT:
                    corrupt.append(place)
                    continue
                images.append(shaped(image, self.view.scales[scale], mirrored=mirrored))
                targets.append(self._target(place, image.size, images[-1], mirrored))
                break
            else:
                if self.view.train:
                    raise DamagedDataError(f"No image in {self.files.root} can be read.")
        return images, targets, corrupt

    def _target(
        self, place: int, old: tuple[int, int], pixels: Tensor, mirrored: bool
    ) -> dict[str, Tensor]:
        if old != self.files.sizes[place]:
            told = "x".join(map(str, self.files.sizes[place]))
            raise DamagedDataError(
                f"{self.files.root / self.files.files[place]} has {old[0]}x{old[1]} pixels, its "
                f"annotation says {told}: the boxes would not fit."
            )
        new = (pixels.shape[2], pixels.shape[1])
        truth = self.files.truth(place)
        boxes = moved(truth["boxes"], old, new, mirrored=mirrored)
        factor = torch.tensor([new[0] / old[0], new[1] / old[1]], dtype=torch.float32)
        target = {**truth, "boxes": boxes, "index": torch.tensor(place), "factor": factor}
        if self.view.train:
            easy = ~target.pop("difficult")
            target |= {"boxes": boxes[easy], "labels": truth["labels"][easy]}
        return target


class DetectionLoader:
    """Iterate over a set of images with boxes, the same way for a given (seed, epoch) everywhere.

    A batch is (images, targets), two lists: images normalised ``[3, H, W]`` float32 of different
    sizes; targets with ``boxes`` in pixels of that image, ``labels``, ``index`` (place in the set)
    and ``factor`` (width and height over those of the file); for a test also ``difficult``.

    A file that cannot be read is named in a warning. In training the next one stands in for it, in
    a test its batch is shorter. More than a thousandth of the set (at least five) are an error.

    Args:
        dataset: the files.
        view: sizes, training or test.
        batch_size: of the global batch, over all ranks.
        device: where batches are put.
        seed: decides order, sizes and mirroring, together with the epoch.
        repeat: passes over the set in one epoch; the published recipe has 3.
        rank: which slice of each global batch this process takes.
        world: number of processes.
        workers: processes that decode; 0 decodes where the batch is asked for.
    """

    def __init__(
        self,
        dataset: BoxSet,
        view: BoxView,
        *,
        batch_size: int,
        device: torch.device | str = "cpu",
        seed: int = 0,
        repeat: int = 1,
        rank: int = 0,
        world: int = 1,
        workers: int | None = None,
    ) -> None:
        if not len(dataset) or batch_size < 1 or repeat < 1:
            raise ConfigError(
                f"{len(dataset)} images, batch_size={batch_size}, repeat={repeat}: all must be at "
                "least 1."
            )
        if not 0 <= rank < world:
            raise ConfigError(f"rank={rank} does not exist in a world of {world}.")
        if view.train and batch_size % world:
            raise ConfigError(f"batch_size={batch_size} does not divide among {world} processes.")
        self.files, self.view = dataset, view
        self.batch_size, self.seed, self.repeat = batch_size, seed, repeat
        self.rank, self.world = rank, world
        self.device = torch.device(device)
        alone = len(dataset) <= ALONE
        self.workers = (0 if alone else worker_count(world)) if workers is None else workers
        self.corrupt = CorruptCount(dataset)
        self._scale, self._shift = dataset.normalization.constants(self.device)

    @property
    def count(self) -> int:
        """Images of an epoch."""
        return len(self.files) * self.repeat

    def __len__(self) -> int:
        """Return the number of batches; in training the partial one at the end is left out."""
        whole, rest = divmod(self.count, self.batch_size)
        return whole if self.view.train and whole else whole + (rest > 0)

    def plan(self, epoch: int) -> list[tuple[int, int, bool]]:
        """Return (index, scale, mirrored) for every position of an epoch, all ranks."""
        if not self.view.train:
            return [(index, 0, False) for index in range(self.count)]
        plan = epoch_plan(self.count, epoch, self.seed, padding=0)
        generator = torch.Generator().manual_seed(_scale_seed(self.seed, epoch))
        scales = torch.randint(len(self.view.scales), (self.count,), generator=generator)
        order = (plan.permutation % len(self.files)).tolist()
        return list(zip(order, scales.tolist(), plan.flips.tolist(), strict=True))

    def bounds(self, index: int) -> tuple[int, int]:
        """Return the positions (start, stop) in the plan that batch ``index`` of this rank has."""
        first = index * self.batch_size
        size = min(self.batch_size, self.count - first)
        return (
            first + self.rank * size // self.world,
            first + (self.rank + 1) * size // self.world,
        )

    def batches(
        self, epoch: int, *, start: int = 0
    ) -> Iterator[tuple[list[Tensor], list[dict[str, Tensor]]]]:
        """Yield (images, targets) of this rank for batches ``start`` and following of an epoch."""
        if not 0 <= start <= len(self):
            raise ConfigError(f"start={start} is not a batch of an epoch of {len(self)}.")
        plan = self.plan(epoch)
        tasks = [plan[slice(*self.bounds(index))] for index in range(start, len(self))]
        pinned = self.device.type == "cuda" and self.workers > 0
        pictures = _Pictures(self.files, self.view)
        for images, targets, corrupt in decoded(
            pictures, tasks, workers=self.workers, pinned=pinned
        ):
            self.corrupt.add(corrupt)
            yield (
                [self.prepared(image) for image in images],
                [{k: v.to(self.device, non_blocking=True) for k, v in t.items()} for t in targets],
            )

    def prepared(self, pixels: Tensor) -> Tensor:
        """Return uint8 pixels as network input on the device."""
        return pixels.to(self.device, non_blocking=True) * self._scale + self._shift


def in_file_pixels(detections: dict[str, Tensor], target: dict[str, Tensor]) -> dict[str, Tensor]:
    """Return detections with boxes in pixels of the image file, where the metric wants them."""
    return {**detections, "boxes": detections["boxes"] / target["factor"].repeat(2)}


def _scale_seed(seed: int, epoch: int) -> int:
    digest = hashlib.sha256(f"scales of epoch {epoch} of seed {seed}".encode()).digest()
    return int.from_bytes(digest[:4], "little")
