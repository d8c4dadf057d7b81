"""What a run is made of, once it is built, and where it runs."""

from dataclasses import dataclass

import torch
from torch import nn

from surge.compensation import Compensation
from surge.recipes.recipe import TrainSpec


@dataclass(frozen=True)
class Parts:
    """What a training loop needs, on its device."""

    model: nn.Module
    compensation: Compensation | None
    optimizer: torch.optim.Optimizer


@dataclass(frozen=True)
class Place:
    """Where batches are made, and in which form; fields are named as options of loaders are."""

    device: torch.device
    rank: int
    world: int
    dtype: torch.dtype
    memory_format: torch.memory_format


def layout_on(device: torch.device) -> torch.memory_format:
    """Return the layout of images and kernels that suits a device."""
    return torch.channels_last if device.type == "cuda" else torch.contiguous_format


def compute_dtype(spec: TrainSpec, device: torch.device) -> torch.dtype:
    """Return the dtype of activations: bf16 only where the recipe and the device have it."""
    return torch.bfloat16 if device.type == "cuda" and spec.precision == "bf16" else torch.float32
