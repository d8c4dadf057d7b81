"""What a run is made of, once it is built."""

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


def compute_dtype(spec: TrainSpec, device: torch.device) -> torch.dtype:
    """Return the dtype of activations: bf16 only where the recipe and the device have it."""
    return torch.bfloat16 if device.type == "cuda" and spec.precision == "bf16" else torch.float32
