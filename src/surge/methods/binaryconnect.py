"""BinaryConnect: binary weights, real inputs."""

import torch
from torch import Tensor

from surge import functional
from surge.method import Geometry, register_method
from surge.methods.bnn import BNN


@register_method(
    "binaryconnect", bits=(1, 32), reference="Courbariaux et al., NeurIPS 2015, arXiv:1511.00363"
)
class BinaryConnect(BNN):
    """BinaryConnect (Courbariaux et al. 2015): only the weights are binary.

    Weights   w_b = sign(w)      gradient passes unchanged; w is clamped to [-1, 1] each step
              ``stochastic``: while training +1 with probability clip((w + 1)/2, 0, 1), else -1
    Inputs    real, true gradient: SURGE has nothing to repair and refuses
    Schedule  none.   Extra loss  none.   Output scale  none.
    Paper vs here: identical, but the learning rates are not multiplied by Glorot's coefficients;
    inference uses the binary weights (the paper's first choice), also after stochastic training.
    """

    not_compensable = "its inputs are real, so their gradient is exact"

    def __init__(self, geometry: Geometry, weight: Tensor, *, stochastic: bool = False) -> None:
        """Choose the rule of training; there is no state."""
        super().__init__(geometry, weight)
        self.stochastic = stochastic

    def binarize(self, z: Tensor) -> Tensor:
        """Leave the input as it is."""
        return z

    def surrogate_is_zero(self, z: Tensor) -> Tensor:
        """Nowhere."""
        return torch.zeros_like(z, dtype=torch.bool)

    def binarize_weight(self, weight: Tensor) -> Tensor:
        """Sign, straight through; of a disturbed weight where it is drawn."""
        if self.stochastic and self.training:
            # w + U(-1, 1) is positive with probability clip((w + 1)/2, 0, 1).
            weight = weight + (2 * torch.rand_like(weight) - 1)
        return functional.sign_identity(weight)

    def packed_weight(self, weight: Tensor) -> tuple[Tensor, Tensor]:
        """Return the signs, in training too."""
        return functional.sign(weight), weight.new_ones(self.geometry.out_features)
