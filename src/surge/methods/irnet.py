"""IR-Net: balanced weights, and a surrogate that sharpens while training."""

import math
from typing import ClassVar

import torch
from torch import Tensor

from surge import functional
from surge.errors import ConfigError
from surge.method import (
    Geometry,
    Method,
    mean_magnitude,
    needs_spread,
    register_method,
    standardize,
)


def sharpness_at(progress: float, low: float, high: float) -> tuple[float, float]:
    """Return EDE's (k, t) at ``progress`` in [0, 1): t runs from ``low`` to ``high`` by decades.

    >>> sharpness_at(0.0, 0.1, 10.0)
    (10.0, 0.1)
    >>> sharpness_at(0.5, 0.1, 10.0)
    (1.0, 1.0)
    """
    t = low * (high / low) ** progress
    return max(1 / t, 1.0), t


class Sharpening(Method):
    """What methods with EDE's schedule share: k and t of this epoch, from t_min to t_max."""

    dropped: ClassVar[tuple[str, ...]] = ("k", "t")

    k: Tensor
    t: Tensor

    def __init__(
        self, geometry: Geometry, weight: Tensor, *, t_min: float = 0.1, t_max: float = 10.0
    ) -> None:
        """Start at the wide end of the schedule."""
        super().__init__(geometry, weight)
        needs_spread(self.name, weight)
        if not 0 < t_min <= t_max < math.inf:
            raise ConfigError(f"t_min={t_min}, t_max={t_max}: need 0 < t_min <= t_max, finite.")
        self.t_range = (t_min, t_max)
        self.register_buffer("k", torch.ones(()))
        self.register_buffer("t", torch.ones(()))
        self.on_epoch(0, 1)

    def on_epoch(self, epoch: int, epochs: int) -> None:
        """Sharpen the surrogate."""
        k, t = sharpness_at(epoch / epochs, *self.t_range)
        self.k.fill_(k)
        self.t.fill_(t)


@register_method("irnet", bits=(1, 1), reference="Qin et al., CVPR 2020, arXiv:1909.10788")
class IRNet(Sharpening):
    """IR-Net (Qin et al. 2020): Libra parameter binarisation and error decay (EDE).

    Weights   v = (w - mean) / std per filter; s = 2^round(log2(mean(abs(v)))), a constant
              w_b = s sign(v); gradient s k t (1 - tanh(t v)^2), then through the
              standardisation (s multiplies the sign, so the chain rule keeps it)
    Inputs    x_b = sign(x)      gradient k t (1 - tanh(t x)^2), nowhere exactly zero
    Schedule  t = t_min (t_max / t_min)^(e/E), k = max(1/t, 1).   Extra loss  none.
    Paper vs here: identical; sign(0) = +1, k and t are saved, and a filter of equal weights
    gives zeros instead of NaN. ``t_min`` is the paper's 0.1; the authors' ResNet-20 script has
    0.001.
    """

    def binarize(self, z: Tensor) -> Tensor:
        """Sign with the present EDE surrogate."""
        return functional.sign_ede(z, self.k, self.t)

    def surrogate_is_zero(self, z: Tensor) -> Tensor:
        """Nowhere."""
        return torch.zeros_like(z, dtype=torch.bool)

    def binarize_weight(self, weight: Tensor) -> Tensor:
        """Standardise, take the sign, scale by a power of two."""
        balanced = standardize(weight)
        scale = torch.exp2(mean_magnitude(balanced.detach()).log2().round())
        return scale * functional.sign_ede(balanced, self.k, self.t)
