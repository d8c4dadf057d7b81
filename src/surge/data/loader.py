"""Batches from a data set that lives on the device as one tensor.

CIFAR-10 is 150 MB: kept on the GPU, it needs no worker processes and no copies, and picking,
cropping, flipping and normalising a batch are a few small kernels.
"""

from collections.abc import Iterator

import torch
from torch import Tensor

from surge.data.augment import Augmentation, crop_flip, normalize
from surge.data.imageset import ImageSet
from surge.data.plan import EpochPlan, epoch_plan
from surge.errors import ConfigError
from surge.ranks import share_of


class ResidentLoader:
    """Iterate over a resident data set, the same way for a given (seed, epoch) everywhere.

    With ``world`` processes every *global* batch is divided among the ranks, in order: their
    slices put together are the batch a single process would see. Where a batch does not divide
    evenly (in training only the last, partial one can) slices differ in length by one image.

    Args:
        dataset: the images.
        batch_size: of the global batch, over all ranks.
        device: where the data set is put and batches are made.
        seed: decides order and augmentation, together with the epoch.
        shuffle: draw a new order each epoch; without it images come as stored.
        augmentation: crops and flips, or None for images as stored.
        drop_last: leave out the partial batch at the end of an epoch.
        rank: which slice of each global batch this process takes.
        world: number of processes.
        dtype: of the batches.
        memory_format: of the batches, e.g. ``torch.channels_last``.
    """

    def __init__(
        self,
        dataset: ImageSet,
        *,
        batch_size: int,
        device: torch.device | str = "cpu",
        seed: int = 0,
        shuffle: bool = False,
        augmentation: Augmentation | None = None,
        drop_last: bool = False,
        rank: int = 0,
        world: int = 1,
        dtype: torch.dtype = torch.float32,
        memory_format: torch.memory_format = torch.contiguous_format,
    ) -> None:
        self.batch_size = batch_size
        self.seed = seed
        self.shuffle = shuffle
        self.augmentation = augmentation
        self.drop_last = drop_last
        self.rank = rank
        self.world = world
        self.dtype = dtype
        self.memory_format = memory_format
        self._count = len(dataset)
        self._check()
        self.device = torch.device(device)
        self.classes = dataset.classes
        self.normalization = dataset.normalization
        self.images = dataset.images.to(self.device)
        self.labels = dataset.labels.to(self.device)
        self._scale, self._shift = dataset.normalization.constants(self.device)

    def _check(self) -> None:
        if self.batch_size < 1:
            raise ConfigError(f"batch_size={self.batch_size} is not accepted: at least 1.")
        if not 0 <= self.rank < self.world:
            raise ConfigError(f"rank={self.rank} does not exist in a world of {self.world}.")
        if len(self) == 0:
            raise ConfigError(
                f"{self._count} images give no batch of {self.batch_size}"
                f"{' with drop_last' if self.drop_last else ''}."
            )
        if self.shuffle:
            self._check_shares()

    def _check_shares(self) -> None:
        """Refuse what would weigh ranks differently in training; evaluation only counts."""
        if self.batch_size % self.world:
            raise ConfigError(
                f"batch_size={self.batch_size} does not divide among {self.world} processes."
            )
        rest = self._count % self.batch_size
        if not self.drop_last and 0 < rest < self.world:
            raise ConfigError(
                f"The last batch has {rest} images for {self.world} processes: an idle rank "
                "would have no gradient. Use drop_last or another batch_size."
            )

    def __len__(self) -> int:
        """Return the number of batches in an epoch, the same on every rank."""
        whole, rest = divmod(self._count, self.batch_size)
        return whole + (rest > 0 and not self.drop_last)

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        """Iterate in stored order; a shuffled loader must be told the epoch."""
        if self.shuffle:
            raise ConfigError(
                "A shuffled loader needs to know the epoch: iterate over "
                "loader.batches(epoch) instead of loader."
            )
        return self.batches(0)

    def batches(self, epoch: int, *, start: int = 0) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield (images, labels) of this rank for batches ``start`` and following of an epoch."""
        if not 0 <= start <= len(self):
            raise ConfigError(f"start={start} is not a batch of an epoch of {len(self)}.")
        return self._batches(self.plan(epoch), start)

    def _batches(self, plan: EpochPlan, start: int) -> Iterator[tuple[Tensor, Tensor]]:
        for index in range(start, len(self)):
            yield self.fetch(self.part(plan, index))

    def plan(self, epoch: int) -> EpochPlan:
        """Return the decisions for a whole epoch (all ranks), on the device."""
        padding = self.augmentation.padding if self.augmentation else 0
        plan = epoch_plan(self._count, epoch, self.seed, padding=padding, shuffle=self.shuffle)
        return plan.to(self.device)

    def part(self, plan: EpochPlan, index: int) -> EpochPlan:
        """Return batch ``index`` of this rank, ready for :meth:`fetch`."""
        return plan.part(*self.bounds(index))

    def bounds(self, index: int) -> tuple[int, int]:
        """Return the positions (start, stop) in the plan that batch ``index`` of this rank has."""
        first = index * self.batch_size
        size = min(self.batch_size, self._count - first)
        start, stop = share_of(size, self.rank, self.world)
        return first + start, first + stop

    def fetch(self, plan: EpochPlan) -> tuple[Tensor, Tensor]:
        """Make the batch for a part of a plan, entirely on the device.

        Nothing here waits for the host or depends on values: a training step can capture this
        call with three static tensors and copy the next part of the plan into them.
        """
        images = self.images.index_select(0, plan.permutation)
        if self.augmentation is not None:
            flips = plan.flips if self.augmentation.flip else torch.zeros_like(plan.flips)
            padding = self.augmentation.padding
            images = crop_flip(images, plan.offsets, flips, padding=padding)
        batch = normalize(
            images, self._scale, self._shift, dtype=self.dtype, memory_format=self.memory_format
        )
        return batch, self.labels.index_select(0, plan.permutation)
