"""Elastic binarisation: two levels, {-a, a} or {0, a}, whose distance a is learnt.

With N the number of elements and g the gradient at the output::

    signed     b = a sign(x)                  dL/dx = g where abs(x) <= a, else 0
               dL/da = sum(sign(x) g) / sqrt(N)
    unsigned   b = a clip(round(x / a), 0, 1) dL/dx = g where 0 <= x <= a, else 0
               dL/da = sum(g (1{x > a} + 1{0 <= x <= a} (round(x / a) - x / a))) / sqrt(N)

N counts the elements of one forward, so that the level's gradient, unlike all others, is larger
in a batch that is taken in parts. A level below 1e-5 is used as 1e-5. The first level comes from
data: :func:`initialize_` runs one batch and sets a = 2 mean(abs(x)) (signed) or 4 mean(abs(x))
(unsigned). It is a call of its own, so that no training step has to ask whether it is the first.
"""

import math
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn

from surge.functional import operator, save_inputs, sign, widened

FLOOR = 1e-5


def _level_gradient(terms: Tensor, level: Tensor) -> Tensor:
    return (terms.sum() / math.sqrt(max(terms.numel(), 1))).to(level.dtype)


def _signed_backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor]:
    x, level = ctx.saved_tensors
    inside = x.abs() <= level.clamp(min=FLOOR)
    return grad * inside, _level_gradient(widened(grad) * sign(x), level)


@operator("elastic_signed", backward=_signed_backward, setup=save_inputs)
def elastic_signed(x: Tensor, level: Tensor) -> Tensor:
    """Return ``level * sign(x)``; ``level`` is a scalar tensor and takes a gradient."""
    return nearer_level(x, level, unsigned=False)


def nearer_level(x: Tensor, level: Tensor, *, unsigned: bool) -> Tensor:
    """Return the nearer of both levels, without a gradient of its own."""
    a = level.clamp(min=FLOOR)
    if unsigned:
        return (a * torch.round(widened(x) / a).clamp(0, 1)).to(x.dtype)
    return (a * sign(x)).to(x.dtype)


def _unsigned_backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor]:
    x, level = ctx.saved_tensors
    a = level.clamp(min=FLOOR)
    share = widened(x) / a
    inside = (share >= 0) & (share <= 1)
    slope = torch.where(inside, torch.round(share) - share, (share > 1).to(share.dtype))
    return grad * inside, _level_gradient(widened(grad) * slope, level)


@operator("elastic_unsigned", backward=_unsigned_backward, setup=save_inputs)
def elastic_unsigned(x: Tensor, level: Tensor) -> Tensor:
    """Return 0 or ``level``, whichever is nearer; the middle itself goes to 0."""
    return nearer_level(x, level, unsigned=True)


class Elastic(nn.Module):
    """One elastic quantiser: a learnable level, and whether data has set it yet."""

    initialized: Tensor

    def __init__(self, *, unsigned: bool = False) -> None:
        """Start at level 1, which :func:`initialize_` replaces."""
        super().__init__()
        self.unsigned = unsigned
        self.level = nn.Parameter(torch.ones(()))
        self.register_buffer("initialized", torch.zeros((), dtype=torch.bool))
        self.observing = False
        self.untouched = True
        """Whether neither data nor a checkpoint has set the level, without asking the device."""

    def forward(self, x: Tensor) -> Tensor:
        """Binarise; while :func:`initialize_` runs, take the level from ``x`` before."""
        if self.observing:
            self._observe(x.detach())
        return elastic_unsigned(x, self.level) if self.unsigned else elastic_signed(x, self.level)

    @torch.no_grad()
    def _observe(self, x: Tensor) -> None:
        factor = 4.0 if self.unsigned else 2.0
        self.level.copy_(factor * widened(x).abs().mean().clamp(min=FLOOR))
        self.initialized.fill_(True)
        self.untouched = False

    def outside(self, x: Tensor) -> Tensor:
        """Return where no gradient passes to ``x``."""
        a = self.used
        return (x < 0) | (x > a) if self.unsigned else x.abs() > a

    @property
    def used(self) -> Tensor:
        """The level as it is used, without a gradient."""
        return self.level.detach().clamp(min=FLOOR)

    @property
    def rule(self) -> tuple[str, Tensor]:
        """The name of its rule, and the level."""
        return "elastic_unsigned" if self.unsigned else "elastic_signed", self.level

    def extra_repr(self) -> str:
        """Say which two values there are."""
        return "{0, a}" if self.unsigned else "{-a, a}"

    def _load_from_state_dict(self, state_dict: Any, prefix: str, *args: Any) -> None:
        # A float checkpoint knows nothing of levels: keep the fresh one instead of failing.
        if any(key.startswith(prefix) for key in state_dict):
            self.untouched = False
            super()._load_from_state_dict(state_dict, prefix, *args)


def elastic_parts(model: nn.Module) -> Iterator[tuple[str, Elastic]]:
    """Yield every elastic quantiser of a model with its name."""
    for name, module in model.named_modules():
        if isinstance(module, Elastic):
            yield name, module


@torch.no_grad()
def initialize_(model: nn.Module, *inputs: Any, **named_inputs: Any) -> list[str]:
    """Set the levels that no data has set yet, from one batch; return the names of those that ran.

    The model is called once, in evaluation mode and without gradients. Levels of a loaded
    checkpoint are kept. A model without elastic quantisers is not called at all.
    """
    fresh = {name: part for name, part in elastic_parts(model) if not part.initialized}
    if not fresh:
        return []
    training = {module: module.training for module in model.modules()}
    try:
        for part in fresh.values():
            part.observing = True
        model.eval()
        model(*inputs, **named_inputs)
    finally:
        for part in fresh.values():
            part.observing = False
        for module, mode in training.items():
            module.training = mode
    return [name for name, part in fresh.items() if part.initialized]
