"""What is watched besides the loss: flipped bits, divergence, and where it began."""

import torch
from torch import Tensor, nn

from surge.errors import SurgeError
from surge.layers.hooks import binary_layers


class DivergedError(SurgeError, RuntimeError):
    """Training produced numbers that are not finite."""


class BitWatch:
    """Counts how many weight bits changed since the last look."""

    def __init__(self, model: nn.Module) -> None:
        """Remember the bits now."""
        self.layers = [layer for _, layer in binary_layers(model)]
        self.bits = self._now()

    def _now(self) -> list[Tensor]:
        with torch.no_grad():
            return [layer.method.binarize_weight(layer.weight) >= 0 for layer in self.layers]

    def flipped(self) -> float:
        """Return the share of bits that changed since the last call, in percent."""
        if not self.layers:
            return 0.0
        now = self._now()
        changed = torch.stack([(a != b).sum() for a, b in zip(now, self.bits, strict=True)]).sum()
        self.bits = now
        return 100.0 * float(changed) / sum(bits.numel() for bits in now)


def first_not_finite(model: nn.Module) -> str:
    """Name the first layer whose state is not finite; the loss is named if all of them are."""
    for name, module in model.named_modules():
        own = [*module.named_parameters(recurse=False), *module.named_buffers(recurse=False)]
        for key, tensor in own:
            if tensor.is_floating_point() and not torch.isfinite(tensor).all():
                return f'"{name}.{key}"'
    return "the loss alone"
