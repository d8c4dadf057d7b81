"""ReCU: rectified clamp units that revive dead weights."""

import math

import torch
from torch import Tensor, nn

from surge import functional
from surge.errors import ConfigError
from surge.method import Geometry, Method, needs_spread, register_method, standardize

TAU_MIN, TAU_MAX = 0.85, 0.99


def tau_at(progress: float, low: float = TAU_MIN, high: float = TAU_MAX) -> float:
    """Return tau at ``progress`` in [0, 1): ``A exp(progress) + B`` from ``low`` to ``high``.

    >>> round(tau_at(0.0), 4), round(tau_at(0.5), 4), round(tau_at(599 / 600), 4)
    (0.85, 0.9029, 0.9896)
    """
    a = (high - low) / (math.e - 1)
    return a * math.exp(progress) + low - a


@register_method("recu", bits=(1, 1), reference="Xu et al., ICCV 2021, arXiv:2103.12369")
class ReCU(Method):
    """ReCU (Xu et al. 2021).

    Weights   w1 = 2 sqrt(2) (w - mean) / sqrt(var + 1e-5) per filter
              Q = -mean(abs(w1)) ln(2 - 2 tau), a constant; w_b = sign(clamp(w1, -Q, Q))
              gradient passes where abs(w1) <= Q, then through the standardisation
    Inputs    z = x / sqrt(var(x) + 1e-5) per sample, while training (sign does not change)
              x_b = sign(z); gradient max(0, 2 - 2 abs(z)), then through the division
    Output    times alpha, learnable per output channel, drawn from U[0, 1)
    Schedule  tau = A exp(e/E) + B from 0.85 to 0.99.   Extra loss  none.
    Paper vs here: identical to the authors' code, except sign(0) = +1 and that Q never leaves
    the device.
    """

    surrogate = "bireal"
    dropped = ("tau",)

    def __init__(
        self,
        geometry: Geometry,
        weight: Tensor,
        *,
        tau_min: float = TAU_MIN,
        tau_max: float = TAU_MAX,
    ) -> None:
        """Draw alpha; tau = 1 until the first epoch is announced, which means no clamp."""
        super().__init__(geometry, weight)
        needs_spread(self.name, weight)
        if not 0.5 < tau_min <= tau_max < 1:
            raise ConfigError(f"tau_min={tau_min}, tau_max={tau_max}: need 0.5 < min <= max < 1.")
        self.tau_range = (tau_min, tau_max)
        self.alpha = nn.Parameter(torch.rand(geometry.out_features))
        self.register_buffer("tau", torch.ones(()))

    tau: Tensor

    def prepare_input(self, x: Tensor) -> Tensor:
        """Divide every sample by its standard deviation while training."""
        if not self.training:
            return x
        return functional.unit_variance(x, self.geometry.sample_dims(x))

    def binarize_weight(self, weight: Tensor) -> Tensor:
        """Standardise, clamp the tails, take the sign."""
        w1 = standardize(weight, eps=1e-5) * (2 * math.sqrt(2))
        # The floor keeps 0 * inf away: all filters constant, and no epoch announced yet.
        size = w1.detach().abs().mean().clamp(min=1e-6)
        bound = -size * torch.log(2 - 2 * self.tau)
        return functional.sign_identity(w1.clamp(-bound, bound))

    def output_scale(self) -> Tensor:
        """Alpha, which may be negative."""
        return self.alpha

    def packed_scale(self, weight: Tensor) -> Tensor:
        """Alpha, without the work that the bits take."""
        return self.alpha.detach()

    def on_epoch(self, epoch: int, epochs: int) -> None:
        """Move tau along its schedule."""
        self.tau.fill_(tau_at(epoch / epochs, *self.tau_range))
