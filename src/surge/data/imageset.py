"""A labelled set of images held as two tensors, with the preprocessing that belongs to it."""

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from surge.errors import ConfigError


@dataclass(frozen=True)
class Normalization:
    """How stored pixels become network input: ``(pixel / maximum - mean) / std`` per channel."""

    mean: tuple[float, ...]
    """Subtracted, one per channel, after scaling to [0, 1]."""
    std: tuple[float, ...]
    """Divided by, one per channel."""
    maximum: float = 255.0
    """The pixel value that stands for 1.0."""

    def __post_init__(self) -> None:
        """Check that the constants describe one invertible map per channel."""
        if not self.mean or len(self.mean) != len(self.std):
            raise ConfigError(
                f"mean and std must have one value per channel, got {self.mean} and {self.std}."
            )
        if self.maximum <= 0 or min(self.std) <= 0:
            raise ConfigError(
                f"maximum and std must be above 0, got {self.maximum} and {self.std}."
            )

    def constants(self, device: torch.device | str = "cpu") -> tuple[Tensor, Tensor]:
        """Return ``(scale, shift)``, each float32 ``[C, 1, 1]``: input = pixel * scale + shift.

        Make them once and keep them: creating a tensor from Python numbers on a GPU is a copy
        from the host, which a captured graph cannot contain.
        """
        mean = torch.tensor(self.mean, dtype=torch.float64)
        std = torch.tensor(self.std, dtype=torch.float64)
        scale, shift = 1.0 / (self.maximum * std), -mean / std
        return (
            scale.float().view(-1, 1, 1).to(device),
            shift.float().view(-1, 1, 1).to(device),
        )


IMAGENET = Normalization(mean=(0.485, 0.456, 0.406), std=(0.229, 0.224, 0.225))
"""ImageNet's constants; the CIFAR-10 recipes of the literature use them too."""

HALF = Normalization(mean=(0.5,), std=(0.5,), maximum=16.0)
"""Maps the digits' grey values 0..16 to [-1, 1]."""


@dataclass(frozen=True, eq=False)
class ImageSet:
    """Images, labels, class names and preprocessing of one data set or one part of it."""

    images: Tensor
    """uint8 ``[N, C, H, W]``, pixels as stored."""
    labels: Tensor
    """int64 ``[N]``."""
    classes: tuple[str, ...]
    """Name of each label."""
    normalization: Normalization
    """How pixels become network input."""

    def __post_init__(self) -> None:
        """Check shapes and types, so that a mistake shows here and not inside a kernel."""
        if self.images.dtype != torch.uint8 or self.images.dim() != 4:
            raise ConfigError(
                "images must be uint8 [N, C, H, W], got "
                f"{self.images.dtype} {list(self.images.shape)}."
            )
        if self.labels.dtype != torch.int64 or self.labels.shape != self.images.shape[:1]:
            raise ConfigError(
                f"labels must be int64 [{len(self.images)}], got "
                f"{self.labels.dtype} {list(self.labels.shape)}."
            )
        if len(self.normalization.mean) != self.images.shape[1]:
            raise ConfigError(
                f"normalization has {len(self.normalization.mean)} channels, "
                f"the images have {self.images.shape[1]}."
            )

    def __len__(self) -> int:
        return len(self.labels)

    def subset(self, indices: Tensor) -> "ImageSet":
        """Return the images at ``indices``, in that order (a copy)."""
        return replace(self, images=self.images[indices], labels=self.labels[indices])
