"""Images with boxes: decoded once, then resized and mirrored on the device, batch by batch."""

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from surge.data.integrity import DamagedDataError
from surge.data.loader import ResidentLoader
from surge.data.pictures import CORRUPT, CorruptCount, as_tensor, read_picture, worker_count
from surge.data.plan import EpochPlan, epoch_plan
from surge.data.voc import BoxSet
from surge.errors import ConfigError

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


class BoxLoader(ResidentLoader):
    """Batches of images with boxes; a batch's labels are the places of its images in the set.

    ``fetch`` returns ((images, targets), places): images ``[3, H, W]`` in a list, of different
    sizes, and per image the boxes in its pixels. The plan stays on the CPU, where sizes are needed;
    pixels live on the device unless there are very many.
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
        few = sum(picture.numel() for picture in dataset.pixels) <= ON_DEVICE
        self.pixels = [p.to(self.device) if few else p for p in dataset.pixels]
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
        image = pixels[None].to(self.device).float()
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
