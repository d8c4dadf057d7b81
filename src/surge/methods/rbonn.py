"""RBONN: weight and scale are optimised together, and sparse filters are taken back a step."""

from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from surge.errors import ConfigError
from surge.functional import operator, save_inputs, sign, widened
from surge.method import Geometry, per_filter, register_method
from surge.methods.reactnet import ReActNet

UNIT = 0.02
"""Magnitude of a binary weight whose scale is 1."""


def _backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor]:
    weight, scale = ctx.saved_tensors
    return grad * scale, (grad * weight).sum(dim=per_filter(grad), keepdim=True)


@operator("bilinear_weight", backward=_backward, setup=save_inputs)
def bilinear_weight(weight: Tensor, scale: Tensor) -> Tensor:
    """Return ``0.02 scale sign(weight)``; gradients are those of ``scale * weight``."""
    return UNIT * scale * sign(weight)


def ranks(x: Tensor) -> Tensor:
    """Return the place of every element in ascending order; of equal ones the first comes first.

    By comparing all with all, which needs no sort on the device.

    >>> ranks(torch.tensor([0.5, 0.1, 0.5])).tolist()
    [1, 0, 2]
    """
    index = torch.arange(len(x), device=x.device)
    before = (x[None] < x[:, None]) | ((x[None] == x[:, None]) & (index[None] < index[:, None]))
    return before.sum(dim=1)


class Bilinear(ReActNet):
    """What RBONN and IDa-Det share: ``0.02 a sign(w)`` and the loss that pulls w towards it."""

    active_penalty: Tensor

    def __init__(self, geometry: Geometry, weight: Tensor, *, penalty: float) -> None:
        """Draw the scales."""
        super().__init__(geometry, weight)
        if not penalty >= 0:
            raise ConfigError(f"penalty={penalty} must not be negative.")
        self.penalty = penalty
        self.scale = nn.Parameter(torch.randn(geometry.out_features))
        self.register_buffer("active_penalty", torch.zeros(()))

    def magnitude(self) -> Tensor:
        """Return a, one number per filter."""
        return self.scale.abs()

    def used(self, weight: Tensor) -> Tensor:
        """Return the real weight whose signs are taken."""
        return weight

    def binarize_weight(self, weight: Tensor) -> Tensor:
        """Sign times scale."""
        return bilinear_weight(self.used(weight), self._scale(weight))

    def _scale(self, weight: Tensor) -> Tensor:
        return self.geometry.along_weight(self.magnitude()).to(weight.dtype)

    def extra_loss(self, weight: Tensor) -> Tensor | None:
        """Return the bilinear loss, of the distance between the real weight and the binary one."""
        if not self.training:
            return None
        used = self.used(weight)
        missing = used - UNIT * self._scale(weight) * sign(used)
        return self.active_penalty / 2 * widened(missing).square().sum()

    def on_epoch(self, epoch: int, epochs: int) -> None:
        """Switch the loss on."""
        self.active_penalty.fill_(self.penalty)

    def packed_weight(self, weight: Tensor) -> tuple[Tensor, Tensor]:
        """Return the signs of the latent weight itself, in training too, and the scales."""
        return sign(weight), UNIT * self.scale.detach().abs()


@register_method("rbonn", bits=(1, 1), reference="Xu et al., ECCV 2022, arXiv:2209.01542")
class RBONN(Bilinear):
    """RBONN (Xu et al. 2022): recurrent bilinear optimisation; g is the gradient at w_b.

    Weights   v = w - u I G, G the gradient that w had in the step before, while training; u is
              learnable per filter, from 0.2; I = 1 for the 40 % of filters with the smallest a
              w_b = 0.02 a sign(v), a = abs(scale), learnable per filter, from N(0, 1)
              gradient a g to v (no clip), so also to w and u; sum of g v per filter to a
    Inputs    as ReActNet: z = x + shift per channel, x_b = sign(z); gradient max(0, 2 - 2 abs(z))
    Loss      p/2 sum((v - 0.02 a sign(v))^2) with sign(v) constant, p = ``penalty`` = 1e-4
    Schedule  the loss starts with the first announced epoch. u learns at 0.1 of the learning rate
              and without weight decay.
    Paper vs here: the authors add the loss's gradient inside the backward; as a loss it keeps its
    weight under gradient accumulation and loss scaling. Their code compares argsort's indices with
    the threshold, which picks other filters than the smallest: ``rank_filters=False``. G is kept in
    the state instead of w.grad, so it survives zero_grad, checkpoints and replicas.
    """

    lr_factors: ClassVar[dict[str, float]] = {"recurrence": 0.1}
    undecayed = ("recurrence",)
    dropped = ("recurrence", "last_gradient", "active_penalty", "scale")

    last_gradient: Tensor

    def __init__(
        self,
        geometry: Geometry,
        weight: Tensor,
        *,
        penalty: float = 1e-4,
        threshold: float = 0.6,
        rank_filters: bool = True,
    ) -> None:
        """Draw the scales; there is no last gradient yet."""
        super().__init__(geometry, weight, penalty=penalty)
        if not 0 <= threshold <= 1:
            raise ConfigError(f"threshold={threshold} must be from 0 to 1.")
        self.rank_filters = rank_filters
        self.backtracked = int(geometry.out_features * (1 - threshold) + 1e-9)  # 0.9 of 10 leave 1
        self.recurrence = nn.Parameter(torch.full((geometry.out_features,), 0.2))
        self.register_buffer("last_gradient", torch.zeros_like(weight))

    def chosen(self, magnitude: Tensor) -> Tensor:
        """Return I, one number per filter."""
        places = ranks(magnitude.detach())
        if not self.rank_filters:
            places = torch.zeros_like(places).scatter(
                0, places, torch.arange(len(places), device=places.device)
            )
        return (places < self.backtracked).to(magnitude.dtype)

    def used(self, weight: Tensor) -> Tensor:
        """Take sparse filters back a step while training."""
        if not self.training:
            return weight
        step = self.geometry.along_weight(self.recurrence * self.chosen(self.magnitude()))
        return weight - step.to(weight.dtype) * self.last_gradient

    @torch.no_grad()
    def on_step(self, weight: nn.Parameter) -> None:
        """Keep the gradient for the next forward, unless it overflowed."""
        if weight.grad is not None:
            finite = weight.grad.isfinite().all()
            self.last_gradient.copy_(torch.where(finite, weight.grad, self.last_gradient))
