"""TBN: binary weights and ternary inputs."""

from typing import Any

import torch
from torch import Tensor

from surge import functional
from surge.errors import ConfigError
from surge.functional import operator, save_first
from surge.method import Geometry, Method, mean_magnitude, register_method


def _backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
    (x,) = ctx.saved_tensors
    return grad * (x.abs() < 1), None


@operator("ternary", backward=_backward, setup=save_first)
def ternary(x: Tensor, threshold: Tensor) -> Tensor:
    """Return 1 from ``threshold`` up, -1 from its negative down, else 0, and NaN where NaN."""
    x = x.detach()
    outside = torch.where(x <= -threshold, -1.0, torch.where(x.isnan(), x, 0.0))
    return torch.where(x >= threshold, 1.0, outside).to(x.dtype)


@register_method("tbn", bits=(1, 2), reference="Wan et al., ECCV 2018")
class TBN(Method):
    """TBN (Wan et al. 2018): ternary-binary network; n is the number of weights in a filter.

    Weights   w_b = alpha sign(w), alpha = mean(abs(w)) per filter, a constant
              gradient 1/n + alpha where abs(w) <= 1, 1/n elsewhere (XNOR-Net's)
    Inputs    x_t = 1 if x >= D, -1 if x <= -D, else 0, with D = ``delta`` mean(abs(x)) per sample,
              a constant; gradient passes where abs(x) < 1, else 0
    Schedule  none.   Extra loss  none.   Output scale  none (alpha is in the weight).
    Paper vs here: delta = 0.4 is the paper's; the one port there is takes a fixed threshold. D is
    per sample, so that a prediction does not depend on the rest of its batch. The unit's order
    (norm, ternary, convolution, ReLU) belongs to the network.
    """

    def __init__(self, geometry: Geometry, weight: Tensor, *, delta: float = 0.4) -> None:
        """Choose the threshold; there is no state."""
        super().__init__(geometry, weight)
        if not 0 <= delta < float("inf"):
            raise ConfigError(f"delta={delta} must be a finite number from 0 on.")
        self.delta = delta

    def threshold(self, z: Tensor) -> Tensor:
        """Return D, shaped to broadcast over the input."""
        dims = self.geometry.sample_dims(z)
        return self.delta * z.detach().abs().mean(dim=dims, keepdim=True)

    def binarize(self, z: Tensor) -> Tensor:
        """Round to -1, 0 and 1."""
        return ternary(z, self.threshold(z))

    def surrogate_is_zero(self, z: Tensor) -> Tensor:
        """Zero from 1 on."""
        return z.abs() >= 1

    def scales_signs(self) -> bool:
        """Alpha is in the weight."""
        return True

    def binarize_weight(self, weight: Tensor) -> Tensor:
        """Sign times the mean magnitude; the difference of equals carries the gradient 1/n."""
        alpha = mean_magnitude(weight.detach())
        through = (weight - weight.detach()) / weight[0].numel()
        return alpha * functional.sign_clipped(weight) + through
