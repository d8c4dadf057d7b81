"""Tokenised sentences of one length, held as tensors on the training device."""

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from surge.data.loader import ResidentLoader
from surge.data.plan import EpochPlan
from surge.errors import ConfigError


@dataclass(frozen=True, eq=False)
class TextSet:
    """Sentences, labels and class names of one task or one part of it."""

    tokens: Tensor
    """int32 ``[N, 3, length]``: word numbers, which of two texts, and 1 where there is a word."""
    labels: Tensor
    """int64 ``[N]``, or float32 where there are scores instead of classes."""
    classes: tuple[str, ...]
    """Name of each label; empty for scores."""
    cut: Tensor | None = None
    """bool ``[N]``: whether a sentence was too long and has lost its end; None: none was."""
    sections: tuple[tuple[str, int], ...] = ()
    """Name and size of the parts that stand one after the other, where there are several."""

    def __post_init__(self) -> None:
        """Check shapes and types, so that a mistake shows here and not inside a kernel."""
        shape = self.tokens.shape
        if self.tokens.dtype != torch.int32 or len(shape) != 3 or shape[1] != 3:
            raise ConfigError(
                f"tokens must be int32 [N, 3, length], got {self.tokens.dtype} {list(shape)}."
            )
        wanted = torch.int64 if self.classes else torch.float32
        if self.labels.dtype != wanted or self.labels.shape != shape[:1]:
            raise ConfigError(
                f"labels must be {wanted} [{shape[0]}], got {self.labels.dtype} "
                f"{list(self.labels.shape)}."
            )

    def __len__(self) -> int:
        return len(self.labels)

    @property
    def length(self) -> int:
        """Tokens of every sentence, the padding included."""
        return self.tokens.shape[2]

    @property
    def truncated(self) -> int:
        """How many sentences have lost their end."""
        return 0 if self.cut is None else int(self.cut.sum())

    def subset(self, indices: Tensor) -> "TextSet":
        """Return the sentences at ``indices``, in that order and as one part (a copy)."""
        tokens, labels = self.tokens[indices], self.labels[indices]
        cut = None if self.cut is None else self.cut[indices]
        return replace(self, tokens=tokens, labels=labels, cut=cut, sections=())


class TextLoader(ResidentLoader):
    """Batches of a :class:`TextSet`, in the order and with the guarantees of its base."""

    def __init__(
        self,
        dataset: TextSet,
        *,
        batch_size: int,
        device: torch.device | str = "cpu",
        seed: int = 0,
        shuffle: bool = False,
        drop_last: bool = False,
        rank: int = 0,
        world: int = 1,
    ) -> None:
        self.batch_size, self.seed, self.shuffle = batch_size, seed, shuffle
        self.drop_last, self.rank, self.world = drop_last, rank, world
        self.augmentation = None
        self.dtype = torch.int64
        self._count = len(dataset)
        self._check()
        self.device = torch.device(device)
        self.classes = dataset.classes
        self.tokens = dataset.tokens.to(self.device)
        self.labels = dataset.labels.to(self.device)

    def fetch(self, plan: EpochPlan) -> tuple[Tensor, Tensor]:
        """Return (tokens, labels) for a part of a plan; nothing here waits for the host."""
        tokens = self.tokens.index_select(0, plan.permutation).long()
        return tokens, self.labels.index_select(0, plan.permutation)
