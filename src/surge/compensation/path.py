"""What all auxiliary paths have in common, and the watch over forgotten updates."""

import warnings
from typing import Any

import torch
from torch import Tensor

from surge.compensation.dual_path import squared_norm
from surge.compensation.options import PathOptions
from surge.compensation.scaler import cosine_decay
from surge.errors import SurgeWarning
from surge.functional import wide_default
from surge.layers.base import Auxiliary, BinaryLayer


class Watch:
    """Says once, for all layers of a model, that training goes on and no scale is ever renewed."""

    PATIENCE = 200

    def __init__(self) -> None:
        """Begin with no scale renewed."""
        self.settled = False

    def __getstate__(self) -> dict[str, Any]:
        """Let a copy begin anew: it follows no optimizer yet."""
        return {"settled": False}

    def heed(self, forwards: int) -> None:
        """Warn if a layer has run so often and nothing was renewed."""
        if not self.settled and forwards >= self.PATIENCE:
            self.warn(f"{forwards} training forwards")

    def warn(self, gone: str) -> None:
        """Warn, and be silent from now on."""
        self.settled = True
        warnings.warn(
            f"{gone} went by and SURGE's scale was never updated: "
            "call compensation.follow(optimizer) once, or compensation.step() after each "
            "optimizer step, and backward() without inputs=, which leaves its norms out.",
            SurgeWarning,
            stacklevel=2,
        )


class Path(Auxiliary):
    """What is common to all paths: the scale, the dose, the probes, moving between devices."""

    scale: Tensor
    eta: Tensor

    def __init__(self, layer: BinaryLayer, options: PathOptions) -> None:
        """Place the state on the layer's device."""
        super().__init__()
        self.options = options
        place: Any = {"device": layer.weight.device, "dtype": wide_default()}
        self.register_buffer("scale", torch.zeros((), **place))
        self.register_buffer("eta", torch.full((), float(options.eta), **place))
        self.probes = {
            name: torch.zeros((), **place, requires_grad=True) for name in ("main", "auxiliary")
        }

    def squares(self, name: str) -> Tensor:
        """Return the squared norm collected by a probe since the last reset."""
        grad = self.probes[name].grad
        if grad is None:
            return torch.zeros((), device=self.scale.device)
        return squared_norm(grad) if grad.dim() else grad

    def reset_probes(self) -> None:
        """Forget what the probes collected."""
        for probe in self.probes.values():
            probe.grad = None

    def on_epoch(self, epoch: int, epochs: int) -> None:
        """Let the dose decay, if it does."""
        if self.options.decay == "cosine":
            self.eta.fill_(self.options.eta * cosine_decay(epoch, epochs))

    def _load_from_state_dict(self, *args: Any) -> None:
        super()._load_from_state_dict(*args)
        self.keep_settings()

    def keep_settings(self) -> None:
        """After a state was loaded: its scale is taken over, its settings are not."""
        if self.options.decay == "none":
            self.eta.fill_(float(self.options.eta))

    def _apply(self, fn: Any, recurse: bool = True) -> "Path":
        # The scale stays float32 under .half(), and probes are plain tensors that must move along.
        kept = dict(self.named_buffers(recurse=False))
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        for name, buffer in kept.items():
            setattr(self, name, buffer.to(getattr(self, name).device))
        self.probes = {name: self._moved(probe, fn) for name, probe in self.probes.items()}
        return self

    def _moved(self, probe: Tensor, fn: Any) -> Tensor:
        held = probe.detach()
        moved: Tensor = fn(held) if held.dim() else held.to(self.scale.device)
        return probe if moved is held else moved.requires_grad_()
