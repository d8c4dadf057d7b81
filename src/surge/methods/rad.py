"""RAD: a plain binary network whose activations are kept away from bad distributions."""

from typing import Any

import torch
from torch import Tensor, nn

from surge.errors import ConfigError
from surge.functional import widened
from surge.method import Geometry, register_method
from surge.methods.bnn import BNN


def distribution_penalty(x: Tensor, channels: int) -> Tensor:
    """Return D1 + D2 of a pre-activation; ``channels`` is the dimension that is kept."""
    others = [d for d in range(x.dim()) if d != channels]
    x = widened(x)
    mean = x.mean(dim=others)
    spread = (x.var(dim=others, correction=0) + 1e-10).sqrt()
    degenerate = (2 - mean.abs() - spread).clamp(min=0).square().mean()
    saturated = (spread - 4).clamp(min=0).square().mean()
    mismatched = (mean.square() - spread.square()).clamp(min=0).mean()
    return degenerate + saturated + mismatched


@register_method("rad", bits=(1, 1), reference="Ding et al., CVPR 2019, arXiv:1904.02823")
class RAD(BNN):
    """RAD (Ding et al. 2019): BNN with a loss that regularises activation distributions.

    Weights   as BNN: w_b = sign(w), gradient unchanged, w clamped to [-1, 1] after each step
    Inputs    as BNN: x_b = sign(x), gradient passes where abs(x) <= 1, else 0
    Loss      c (D1 + D2), averaged over layers; m, s are mean and standard deviation of every
              channel of x, over batch and space; means over the channels
              D1 = mean(max(0, min(2 - m - s, 2 + m - s))^2) + mean(max(0, s - 4)^2)
              D2 = mean(max(0, m^2 - s^2))
    Schedule  c = ``strength`` while e/E < ``until`` (the authors' 60 of 65), then 0; also 0
              until the first epoch is announced.
    Paper vs here: identical. m and s must be those of what a Hardtanh would clamp: build models
    with activation="none" (the estimator clips by itself), else clamped values are judged. As in a
    BatchNorm they are those of one forward: processes and micro-batches each judge their own part,
    and the loss is the mean over parts.
    A layer that runs more than once in a forward is judged by its last input.
    SURGE: the loss enters below x and, but for aux_input="layer_input", is no part of its main
    gradient.
    """

    averages_extra_loss = True
    dropped = ("active_strength",)

    active_strength: Tensor
    penalty: Tensor | None = None
    without_gradient = False
    """Whether the penalty was made where no gradient could reach it."""

    def __init__(
        self,
        geometry: Geometry,
        weight: Tensor,
        *,
        strength: float = 2.0,
        until: float = 60 / 65,
    ) -> None:
        """Set the weight of the loss, and when it ends."""
        super().__init__(geometry, weight)
        if not (strength >= 0 and 0 <= until <= 1):
            raise ConfigError(
                f"strength={strength}, until={until}: need strength >= 0 and 0 <= until <= 1."
            )
        self.strength, self.until = strength, until
        self.register_buffer("active_strength", torch.zeros(()))

    def prepare_input(self, x: Tensor) -> Tensor:
        """Judge the distribution while training; the input passes as it is."""
        if self.training:
            penalty = distribution_penalty(x, self.geometry.feature_dim(x))
            self.penalty = self.active_strength * penalty
            self.without_gradient = not torch.is_grad_enabled()
        return x

    def extra_loss(self, weight: Tensor) -> Tensor | None:
        """Return c (D1 + D2) of the last forward."""
        penalty = self.penalty if self.training else None
        if penalty is not None and torch.is_grad_enabled() and self.without_gradient:
            raise ConfigError(
                "The loss of rad belongs to a forward that ran without gradients, as reentrant "
                "checkpointing runs them; use checkpoint(..., use_reentrant=False)."
            )
        return penalty

    def on_epoch(self, epoch: int, epochs: int) -> None:
        """Switch the loss on, and off near the end."""
        self.active_strength.fill_(self.strength if epoch / epochs < self.until else 0.0)

    def on_step(self, weight: nn.Parameter) -> None:
        """Forget the loss too: a layer that does not run in the next step has none there."""
        super().on_step(weight)
        self.penalty = None

    def __getstate__(self) -> dict[str, Any]:
        """Leave the loss out of copies: it belongs to one forward's graph."""
        return {**self.__dict__, "penalty": None}
