"""Fixed, stratified splits: the same held-out images for every run, whatever its seed."""

import torch
from torch import Tensor

from surge.data.imageset import ImageSet
from surge.errors import ConfigError

SPLIT_SEED = 2024
"""Seed of every split. Not the seed of a run: validation images must not change with it."""


def stratified_split(
    labels: Tensor, fraction: float, *, seed: int = SPLIT_SEED
) -> tuple[Tensor, Tensor]:
    """Hold out the same fraction of each class; return (kept, held out) indices, sorted.

    >>> kept, held = stratified_split(torch.tensor([0, 1] * 10), 0.1)
    >>> len(kept), len(held)
    (18, 2)
    """
    if not 0 < fraction < 1:
        raise ConfigError(f"fraction={fraction} is not accepted: it must lie between 0 and 1.")
    labels = labels.cpu()
    generator = torch.Generator().manual_seed(seed)
    held = torch.zeros(len(labels), dtype=torch.bool)
    for label in sorted(set(labels.tolist())):
        members = (labels == label).nonzero().flatten()
        order = torch.randperm(len(members), generator=generator)
        held[members[order[: round(fraction * len(members))]]] = True
    return (~held).nonzero().flatten(), held.nonzero().flatten()


def hold_out(dataset: ImageSet) -> tuple[ImageSet, ImageSet]:
    """Split a training set into (training, validation): CIFAR-10's 50,000 into 45,000 and 5,000."""
    kept, held = stratified_split(dataset.labels, 0.1)
    return dataset.subset(kept), dataset.subset(held)
