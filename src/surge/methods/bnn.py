"""Binarized neural networks: the straight-through estimator."""

import torch
from torch import Tensor, nn

from surge import functional
from surge.method import Method, register_method


@register_method("bnn", bits=(1, 1), reference="Courbariaux et al., 2016, arXiv:1602.02830")
class BNN(Method):
    """Binarized Neural Networks (Courbariaux et al. 2016), the plain STE.

    Weights   w_b = sign(w)      gradient passes unchanged; w is clamped to [-1, 1] each step
    Inputs    x_b = sign(x)      gradient passes where abs(x) <= 1, else 0
    Schedule  none.   Extra loss  none.   Output scale  none.
    Paper vs here: the paper's stochastic sign is not used. The authors' code lets a Hardtanh
    clip the input gradient; here the clip is in the estimator (doing both changes nothing).
    """

    def binarize_weight(self, weight: Tensor) -> Tensor:
        """Sign, straight through."""
        return functional.sign_identity(weight)

    def on_step(self, weight: nn.Parameter) -> None:
        """Keep the latent weight in [-1, 1]."""
        with torch.no_grad():
            weight.clamp_(-1, 1)
