"""Bi-Real Net: a triangular surrogate and a scale per filter."""

from torch import Tensor

from surge import functional
from surge.method import Geometry, Method, mean_magnitude, register_method


@register_method("bireal", bits=(1, 1), reference="Liu et al., ECCV 2018, arXiv:1808.00278")
class BiReal(Method):
    """Bi-Real Net (Liu et al. 2018).

    Weights   w_b = alpha sign(w), alpha = mean(abs(w)) per filter, a constant
              gradient passes where abs(w) <= 1, else 0; alpha does not multiply it
    Inputs    x_b = sign(x)      gradient max(0, 2 - 2 abs(x))
    Schedule  none.   Extra loss  none.   Output scale  none (alpha is in the weight).
    Paper vs here: the paper (and its Caffe code) multiplies the weight gradient by alpha, the
    "magnitude-aware" gradient; the authors' later PyTorch code, which every follow-up uses, does
    not. The default is the latter, ``magnitude_aware=True`` the former. sign(0) = +1.
    """

    surrogate = "bireal"

    def __init__(
        self, geometry: Geometry, weight: Tensor, *, magnitude_aware: bool = False
    ) -> None:
        """Choose the weight gradient; there is no state."""
        super().__init__(geometry, weight)
        self.magnitude_aware = magnitude_aware

    def scales_signs(self) -> bool:
        """Alpha is in the weight."""
        return True

    def binarize_weight(self, weight: Tensor) -> Tensor:
        """Sign times the mean magnitude of the filter."""
        alpha = mean_magnitude(weight.detach())
        if self.magnitude_aware:
            return alpha * functional.sign_clipped(weight)
        return functional.scaled_sign_clipped(weight, alpha)
