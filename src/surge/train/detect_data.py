"""Images with boxes that live on the device: decoded once, resized and mirrored where they are."""

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from surge.data import EpochPlan, ResidentLoader
from surge.data.integrity import DamagedDataError
from surge.data.pictures import CORRUPT, CorruptCount, as_tensor, read_picture, worker_count
from surge.data.plan import epoch_plan
from surge.data.voc import BoxSet, load_voc
from surge.data.voc_loader import Scale, fitted
from surge.errors import ConfigError
from surge.recipes.recipe import DataSpec

TRAIN, TEST = "trainval", "test"
SHORTER = 0.6
"""The shorter side of an image has at most this share of the longer side's most pixels."""


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


def decode(files: BoxSet) -> DecodedSet:
    """Read every image of a set; unreadable ones are left out, and named in a warning.

    Raises:
        DamagedDataError: too many are unreadable, or one has another size than its annotation says.
    """

    def read(name: str) -> Tensor | None:
        try:
            return as_tensor(read_picture(files.root / name))
        except CORRUPT:
            return None

    with ThreadPoolExecutor(worker_count()) as pool:  # Pillow decodes outside Python's lock
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


def load_detection_sets(spec: DataSpec, root: Path) -> tuple[DecodedSet, DecodedSet]:
    """Return the images to train on and to test on, in memory."""
    train = load_voc(root, TRAIN)
    if spec.held_out:
        held = list(range(0, len(train), 10))
        test = train.subset(held)
        train = train.subset([place for place in range(len(train)) if place % 10])
    else:
        test = load_voc(root, TEST, ("2007",))
    if spec.limit is not None:
        train, test = (part.subset(range(min(spec.limit, len(part)))) for part in (train, test))
    return decode(train), decode(test)


def scale_of(size: float) -> Scale:
    """Return the box into which images are fitted, from the most pixels of their longer side.

    >>> scale_of(1000)
    (1000, 600)
    """
    return round(size), round(SHORTER * size)


class BoxLoader(ResidentLoader):
    """Batches of images with boxes; a batch's labels are the places of its images in the set.

    ``fetch`` returns ((images, targets), places): images ``[3, H, W]`` in a list, of different
    sizes, and per image the boxes in its pixels. The plan stays on the CPU, where sizes are needed.
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
    ) -> None:
        for scale in scales:
            if min(scale) < 32:
                raise ConfigError(f"Images within {scale[0]}x{scale[1]} are too small (--size).")
        self.batch_size, self.seed, self.shuffle = batch_size, seed, train
        self.drop_last, self.rank, self.world = False, 0, 1
        self.augmentation, self.dtype = None, dtype
        self.scales, self.mirror = tuple(scales), mirror
        self._images = len(dataset)
        self._count = len(dataset) * repeat
        self._check()
        self.device = torch.device(device)
        self.classes = dataset.classes
        self.files = dataset.files
        self.pixels = [picture.to(self.device) for picture in dataset.pixels]
        self._scale, self._shift = dataset.files.normalization.constants(self.device)

    def plan(self, epoch: int) -> EpochPlan:
        """Return order, scales and mirroring of an epoch, on the CPU."""
        plan = epoch_plan(self._count, epoch, self.seed, padding=0, shuffle=self.shuffle)
        draws = epoch_plan(self._count, epoch, self.seed, padding=32768, shuffle=False).offsets
        scales = draws % len(self.scales)
        flips = plan.flips if self.mirror else torch.zeros_like(plan.flips)
        return EpochPlan(plan.permutation % self._images, scales, flips)

    def fetch(self, plan: EpochPlan) -> tuple[Any, Tensor]:
        """Make the batch for a part of a plan; only boxes travel to the device."""
        images, targets = [], []
        for place, scale, flip in zip(
            plan.permutation.tolist(), plan.offsets[:, 0].tolist(), plan.flips.tolist(), strict=True
        ):
            size = fitted(self.files.sizes[place], self.scales[scale])
            images.append(self._shaped(self.pixels[place], size, mirrored=flip))
            targets.append(self._target(place, size, mirrored=flip))
        sections = [len(target["labels"]) for target in targets]
        boxes = torch.cat([target["boxes"] for target in targets]).to(self.device)
        labels = torch.cat([target["labels"] for target in targets]).to(self.device)
        parts = zip(torch.split(boxes, sections), torch.split(labels, sections), strict=True)
        there = [{"boxes": b, "labels": label} for b, label in parts]
        return (images, there), plan.permutation.to(self.device)

    def _shaped(self, pixels: Tensor, size: tuple[int, int], *, mirrored: bool) -> Tensor:
        image = pixels[None].float()
        if (pixels.shape[2], pixels.shape[1]) != size:
            image = F.interpolate(
                image, size=size[::-1], mode="bilinear", align_corners=False, antialias=True
            )
        image = image[0].flip(2) if mirrored else image[0]
        return (image * self._scale + self._shift).to(self.dtype)

    def _target(self, place: int, size: tuple[int, int], *, mirrored: bool) -> dict[str, Tensor]:
        easy = ~self.files.difficult[place]
        boxes = self.files.boxes[place][easy] * self.factors(place, size)
        if mirrored:
            boxes = torch.stack(
                [size[0] - boxes[:, 2], boxes[:, 1], size[0] - boxes[:, 0], boxes[:, 3]], dim=1
            )
        return {"boxes": boxes, "labels": self.files.labels[place][easy]}

    def factors(self, place: int, size: tuple[int, int] | None = None) -> Tensor:
        """Return by what boxes of an image are multiplied, ``[4]``; by default as in a test."""
        old = self.files.sizes[place]
        new = size or fitted(old, self.scales[0])
        return torch.tensor([new[0] / old[0], new[1] / old[1]] * 2, dtype=torch.float32)
