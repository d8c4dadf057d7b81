"""One forward without side effects, to learn what feeds every binary layer."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from surge.layers.base import BinaryLayer


def in_backward() -> bool:
    """Return whether a backward is under way; compiled code is traced in none."""
    return not torch.compiler.is_compiling() and torch._C._current_graph_task_id() != -1


class RecordingHardtanh(nn.Hardtanh):
    """A Hardtanh that keeps its last input, for paths that inject above it."""

    preactivation: Tensor | None = None
    repeated = False
    """Whether that was in a backward, which runs checkpointed modules again."""

    def forward(self, x: Tensor) -> Tensor:
        """Clamp, and remember what was clamped."""
        self.preactivation, self.repeated = x, in_backward()
        return super().forward(x)

    def __getstate__(self) -> dict[str, Any]:
        """Leave the kept input out of copies: it belongs to one forward's graph."""
        return {**self.__dict__, "preactivation": None}


def recording_clamps(model: nn.Module) -> list[RecordingHardtanh]:
    """Return the clamps of a model that keep their inputs."""
    return [module for module in model.modules() if isinstance(module, RecordingHardtanh)]


@dataclass(frozen=True)
class Seen:
    """What the dry run saw at one layer's input."""

    needs_gradient: bool
    clamp: nn.Hardtanh | None = None
    clipped: float = 0.0
    """Share of the values for which the surrogate is zero."""

    def and_then(self, other: "Seen") -> "Seen":
        """Return what is true of two calls of a layer together."""
        return Seen(
            self.needs_gradient or other.needs_gradient,
            self.clamp if self.clamp is other.clamp else None,
            max(self.clipped, other.clipped),
        )


UNSEEN = Seen(needs_gradient=False)
"""What is known of a layer that did not run."""


@contextmanager
def restored(model: nn.Module) -> Iterator[None]:
    """Put every module back into its own mode afterwards, and the buffers to their values."""
    modes = {module: module.training for module in model.modules()}
    buffers = [(buffer, buffer.detach().clone()) for buffer in model.buffers()]
    try:
        yield
    finally:
        for module, training in modes.items():
            module.training = training
        with torch.no_grad():
            for buffer, value in buffers:
                buffer.copy_(value)


@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """Put a model in eval mode; afterwards it is as it was."""
    with restored(model):
        model.eval()
        yield


def call(model: nn.Module, example: Any) -> Any:
    """Call a model on an example: a tensor, a tuple of arguments, or keyword arguments."""
    if isinstance(example, Mapping):
        return model(**example)
    return model(*example) if isinstance(example, tuple | list) else model(example)


@torch.no_grad()
def clipped_share(layer: BinaryLayer, x: Tensor) -> float:
    """Return the share of a layer's input for which the surrogate is zero."""
    z = layer.method.prepare_input(x)
    return float(layer.method.surrogate_is_zero(z).float().mean())


def dry_run(
    model: nn.Module, layers: dict[str, BinaryLayer], example: Any, *, measured: bool = False
) -> dict[str, Seen]:
    """Run once in eval mode and report, for every layer, what its input was.

    A layer that did not run is reported as not needing a gradient. What is clipped is counted
    only if it shall be ``measured``, and then as in training: norms are those of the example.
    """
    produced: dict[int, tuple[nn.Hardtanh, Tensor]] = {}
    newest: dict[nn.Module, int] = {}
    seen = dict.fromkeys(layers, UNSEEN)
    handles = []

    def note_clamp(module: nn.Module, _args: Any, output: Tensor) -> None:
        assert isinstance(module, nn.Hardtanh)
        produced[id(output)] = (module, output)
        newest[module] = id(output)

    for name, layer in layers.items():

        def note_layer(_module: nn.Module, args: Any, kwargs: Any, name: str = name) -> None:
            x: Tensor = args[0] if args else kwargs["input"]
            clamp = produced[id(x)][0] if id(x) in produced else None
            if clamp is not None and newest[clamp] != id(x):
                clamp = None  # it ran again since, and keeps another input now
            clipped = clipped_share(layers[name], x) if measured else 0.0
            now, before = Seen(x.requires_grad, clamp, clipped), seen[name]
            seen[name] = now if before is UNSEEN else before.and_then(now)

        handles.append(layer.register_forward_pre_hook(note_layer, with_kwargs=True))
    for module in model.modules():
        # ReLU6 is a subclass of Hardtanh, and an in-place clamp overwrites what is needed.
        if type(module) is nn.Hardtanh and not module.inplace:
            handles.append(module.register_forward_hook(note_clamp))
    devices = {p.device for p in model.parameters() if p.device.type == "cuda"}
    try:
        with restored(model), torch.enable_grad(), torch.random.fork_rng(list(devices)):
            model.train(measured)
            call(model, example)
    finally:
        for handle in handles:
            handle.remove()
        for clamp in recording_clamps(model):
            clamp.preactivation = None
    return seen
