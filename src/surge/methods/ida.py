"""The layer of IDa-Det: weight and scale are optimised together, as in RBONN, without recurrence.

What makes the method a detector's, the choice of proposals and the entropy loss, is in
:mod:`surge.train.detect_distill`.
"""

from typing import Any

import torch
from torch import Tensor, nn

from surge.errors import ConfigError
from surge.functional import sign, widened
from surge.method import Geometry, register_method
from surge.methods.rbonn import UNIT, bilinear_weight
from surge.methods.reactnet import ReActNet


@register_method("ida", bits=(1, 1), reference="Xu et al., ECCV 2022, arXiv:2210.03477")
class IDa(ReActNet):
    """IDa-Det (Xu et al. 2022): its 1-bit layer; g is the gradient at w_b.

    Weights   w_b = 0.02 a sign(w), a = abs(scale), learnable per filter, from N(0, 1)
              gradient a g to w (no clip); sum of g w per filter to a
    Inputs    as ReActNet: z = x + shift per channel, x_b = sign(z); gradient max(0, 2 - 2 abs(z))
    Loss      p/2 sum((w - 0.02 a sign(w))^2) with sign(w) constant, p = ``penalty`` = 1e-4
    Schedule  the loss starts with the first announced epoch.
    Paper vs here: the authors take abs inside their function and its backward forgets the factor
    sign(scale), so that half of all scales move the wrong way: ``forgets_sign=True``. As in RBONN
    the penalty is a loss here, and a part of the backward there.
    """

    dropped = ("active_penalty", "scale")

    active_penalty: Tensor
    bilinear_loss: Tensor | None = None

    def __init__(
        self,
        geometry: Geometry,
        weight: Tensor,
        *,
        penalty: float = 1e-4,
        forgets_sign: bool = False,
    ) -> None:
        """Draw the scales."""
        super().__init__(geometry, weight)
        if not penalty >= 0:
            raise ConfigError(f"penalty={penalty} must not be negative.")
        self.penalty, self.forgets_sign = penalty, forgets_sign
        self.scale = nn.Parameter(torch.randn(geometry.out_features))
        self.register_buffer("active_penalty", torch.zeros(()))

    def magnitude(self) -> Tensor:
        """Return a, one number per filter."""
        magnitude = self.scale.abs()
        # s + (|s| - s) is |s| exactly, and its gradient is 1.
        return self.scale + (magnitude - self.scale).detach() if self.forgets_sign else magnitude

    def binarize_weight(self, weight: Tensor) -> Tensor:
        """Sign times scale; while training the distance to the weight is noted."""
        scale = self.geometry.along_weight(self.magnitude()).to(weight.dtype)
        if self.training:
            missing = weight - UNIT * scale * sign(weight)
            self.bilinear_loss = self.active_penalty / 2 * widened(missing).square().sum()
        return bilinear_weight(weight, scale)

    def extra_loss(self) -> Tensor | None:
        """Return the bilinear loss of the last forward."""
        return self.bilinear_loss if self.training else None

    def on_epoch(self, epoch: int, epochs: int) -> None:
        """Switch the loss on."""
        self.active_penalty.fill_(self.penalty)

    def packed_weight(self, weight: Tensor) -> tuple[Tensor, Tensor]:
        """Return the signs of the latent weight, and the scales."""
        return sign(weight), UNIT * self.scale.detach().abs()

    def __getstate__(self) -> dict[str, Any]:
        """Leave the loss out of copies: it belongs to one forward's graph."""
        return {**self.__dict__, "bilinear_loss": None}
