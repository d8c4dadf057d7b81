"""Says once that a training loop leaves out a call that a method lives by."""

import warnings

import torch

from surge.errors import SurgeWarning
from surge.layers.elastic import Elastic
from surge.method import Method

CALLS = {
    "initialize_": "surge.initialize_(model, ...) with a batch before the first step",
    "on_epoch": "surge.on_epoch(model, epoch, epochs) before every epoch",
    "on_step": "surge.on_step(model) after every optimizer step",
    "extra_loss": "surge.extra_loss(model) as a part of the loss",
}
PATIENCE = 200


class Duties:
    """What a layer's method wants of a loop, and has not been given yet."""

    def __init__(self, method: Method) -> None:
        """See which of the calls mean something to the method."""
        own, base = type(method), Method
        hooks = ("on_epoch", "on_step", "extra_loss")
        wanted = {name for name in hooks if getattr(own, name) is not getattr(base, name)}
        if own.adapt is not base.adapt:
            wanted.add("on_epoch")
        self.levels = [part for part in method.modules() if isinstance(part, Elastic)]
        if self.levels:
            wanted.add("initialize_")
        self.method = method.name
        self.missed = wanted
        self.forwards = 0

    def done(self, call: str) -> None:
        """Note that a call came."""
        if not torch.compiler.is_compiling():
            self.missed.discard(call)

    def count(self) -> None:
        """Count a training forward, and warn where a call is missing for long."""
        self.forwards += 1
        if self.forwards < PATIENCE:
            return
        if not any(level.untouched for level in self.levels):
            self.done("initialize_")
        if not self.missed:
            return
        calls = ", ".join(words for name, words in CALLS.items() if name in self.missed)
        self.missed.clear()
        warnings.warn(
            f"{PATIENCE} training forwards went by without a call that {self.method} needs to be "
            f"what its name says: {calls}.",
            SurgeWarning,
            stacklevel=2,
        )
