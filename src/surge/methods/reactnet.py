"""ReActNet: Bi-Real Net with a learnable threshold per input channel."""

import torch
from torch import Tensor, nn

from surge.method import Geometry, register_method
from surge.methods.bireal import BiReal

REAL = 32


@register_method("reactnet", bits=(1, 1), reference="Liu et al., ECCV 2020, arXiv:2003.03488")
class ReActNet(BiReal):
    """ReActNet (Liu et al. 2020): the RSign half; RPReLU is a layer of the network.

    Weights   as Bi-Real Net: w_b = mean(abs(w)) sign(w); gradient passes where abs(w) <= 1
    Inputs    z = x + shift, learnable per input channel, from 0
              x_b = sign(z); gradient max(0, 2 - 2 abs(z)), to x and summed to the shift
    Schedule  none.   Extra loss  none (the paper's distillation belongs to the recipe).
              ``real_weights`` keeps w as it is, with its exact gradient: the first of two stages
    Paper vs here: identical to the authors' code, except sign(0) = +1. An embedding has no
    input, so it has no shift either.
    """

    learns_at_input = True
    shift: nn.Parameter | None

    def __init__(
        self,
        geometry: Geometry,
        weight: Tensor,
        *,
        magnitude_aware: bool = False,
        real_weights: bool = False,
    ) -> None:
        """Start with all thresholds at zero."""
        super().__init__(geometry, weight, magnitude_aware=magnitude_aware)
        if real_weights:
            self.bits = (REAL, 1)
        has_input = geometry.kind != "embedding"
        self.shift = nn.Parameter(torch.zeros(geometry.in_features)) if has_input else None

    def prepare_input(self, x: Tensor) -> Tensor:
        """Move the threshold of every channel."""
        if self.shift is None:
            return x
        return x + self.geometry.along_input(self.shift).to(x.dtype)

    def scales_signs(self) -> bool:
        """Alpha is in the weight, unless that is real."""
        return self.bits[0] == 1

    def binarize_weight(self, weight: Tensor) -> Tensor:
        """Sign times the mean magnitude of the filter, or the weight itself."""
        return weight if self.bits[0] == REAL else super().binarize_weight(weight)

    def packed_weight(self, weight: Tensor) -> tuple[Tensor, Tensor]:
        """Return +-1 and alpha; real weights stay as they are."""
        if self.bits[0] == 1:
            return super().packed_weight(weight)
        return weight.detach(), weight.new_ones(self.geometry.out_features)
