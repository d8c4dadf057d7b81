"""What is watched besides the loss: flipped bits, divergence, and where it began."""

from typing import Any

import torch
from torch import Tensor, nn

from surge.errors import SurgeError
from surge.layers.base import Auxiliary, BinaryLayer
from surge.layers.hooks import binary_layers


class DivergedError(SurgeError, RuntimeError):
    """Training produced numbers that are not finite."""


def bits_of(layer: BinaryLayer) -> Tensor:
    """Return the values that a file would hold of a layer, as what can flip."""
    values = layer.method.stored_values(layer.weight)
    return values >= 0 if layer.method.bits[0] == 1 else values.int()


class BitWatch:
    """Counts how many of the weights that go to disk changed since the last look.

    Those of training can be others: a method may disturb them, or draw them at random.
    """

    def __init__(self, model: nn.Module) -> None:
        """Remember the bits now."""
        self.layers = [layer for _, layer in binary_layers(model) if layer.method.bits[0] < 32]
        self.bits = self._now()

    def _now(self) -> list[Tensor]:
        with torch.no_grad():
            return [bits_of(layer) for layer in self.layers]

    def flipped(self) -> float:
        """Return the share of bits that changed since the last call, in percent."""
        if not self.layers:
            return 0.0
        now = self._now()
        changed = torch.stack([(a != b).sum() for a, b in zip(now, self.bits, strict=True)]).sum()
        self.bits = now
        return 100.0 * float(changed) / sum(bits.numel() for bits in now)


class Sentinel:
    """Looks at the output of every layer and names the first that is not finite.

    It waits for the device at every layer: for a search, not for training. To be used as a
    context around some steps.
    """

    def __init__(self, model: nn.Module) -> None:
        """Watch the layers that compute something themselves."""
        self.found: str | None = None
        self._layers = {
            name: module
            for name, module in model.named_modules()
            if isinstance(module, BinaryLayer)
            or not (any(module.children()) or isinstance(module, Auxiliary))
        }
        self._handles: list[Any] = []

    def __enter__(self) -> "Sentinel":
        """Begin to look."""
        for name, module in self._layers.items():

            def look(_module: nn.Module, _args: Any, output: Any, name: str = name) -> None:
                bad = isinstance(output, Tensor) and not torch.isfinite(output).all()
                if bad and self.found is None:
                    self.found = f'the output of "{name}"'

            self._handles.append(module.register_forward_hook(look))
        return self

    def __exit__(self, *_: object) -> None:
        """Leave the model as it was."""
        while self._handles:
            self._handles.pop().remove()


def first_bad_gradient(model: nn.Module) -> str | None:
    """Name the gradient that is not finite and came first in the backward, which ends at the input.

    Parameters are taken in the reverse of the order in which the model lists them.
    """
    for name, parameter in reversed(list(model.named_parameters())):
        if parameter.grad is not None and not torch.isfinite(parameter.grad).all():
            return f'the gradient of "{name}"'
    return None


def first_bad_state(model: nn.Module) -> str | None:
    """Name the first parameter or buffer that is not finite."""
    for name, tensor in [*model.named_parameters(), *model.named_buffers()]:
        if tensor.is_floating_point() and not torch.isfinite(tensor).all():
            return f'"{name}"'
    return None
