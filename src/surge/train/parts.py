"""What a run is made of, once it is built, and where it runs."""

from dataclasses import dataclass
from typing import Any

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
    """Where batches are made, and in which form."""

    device: torch.device
    rank: int
    world: int
    dtype: torch.dtype
    memory_format: torch.memory_format
    workers: int | None = None
    """Processes that decode files for this one; None leaves the number to the loader."""

    def options(self) -> dict[str, Any]:
        """Return what every loader of images takes, by the names of its options."""
        return {name: value for name, value in vars(self).items() if name != "workers"}


def layout_on(device: torch.device) -> torch.memory_format:
    """Return the layout of images and kernels that suits a device."""
    return torch.channels_last if device.type == "cuda" else torch.contiguous_format


def set_arithmetic(device: torch.device, precision: str) -> None:
    """Let float32 products and convolutions of a GPU be exact, or TF32 where a recipe says so."""
    if device.type == "cuda":
        short = precision == "tf32"
        torch.set_float32_matmul_precision("high" if short else "highest")
        torch.backends.cudnn.allow_tf32 = short


def compute_dtype(spec: TrainSpec, device: torch.device) -> torch.dtype:
    """Return the dtype of activations: bf16 only where the recipe and the device have it."""
    return torch.bfloat16 if device.type == "cuda" and spec.precision == "bf16" else torch.float32
