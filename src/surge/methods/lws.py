"""The layer of LWS-Det: every weight is searched between -1 and +1, under a learned scale.

The layer-wise losses that guide the search belong to a teacher and are in
:mod:`surge.train.detection.lws_distill`.
"""

import math
from typing import Any

import torch
from torch import Tensor, nn

from surge import functional
from surge.errors import ConfigError
from surge.method import Geometry, Method, mean_magnitude, register_method


@register_method("lws", bits=(1, 1), reference="Xu et al., CVPR 2021, arXiv:2105.11818")
class LWS(Method):
    """LWS-Det (Xu et al. 2021): differentiable search of binary weights.

    Weights   logits A+ and A- of every weight act through L = (A+ - A-) / sqrt(2) = w / d, with w
              the layer's own weight and d its standard deviation at the start; P+, P- their softmax
              search:     w_b = P+ - P- = tanh(L / sqrt(2)), exact gradient
              afterwards: w_b = sign(L), the more likely value, with the gradient of the search
              the output is multiplied by alpha, learnable per filter, from mean(abs(w))
    Inputs    x_b = sign(x)      gradient max(0, 2 - 2 abs(x))
    Schedule  the search takes the first ``search`` of all epochs; d and alpha are taken from the
              weights that the first announced epoch finds.
    Paper vs here: no code is public. The paper draws logits from N(0, 1); here L has variance 1 but
    the signs and order of w, so that a search can begin with a trained network. The paper searches
    to the end and rounds for inference; norms that are frozen, as in a detector, never see rounded
    weights then, hence the second part. ``search=1`` is the paper's course.
    """

    surrogate = "bireal"
    dropped = ("spread", "discrete", "alpha")

    spread: Tensor
    discrete: Tensor
    used: Tensor | None = None
    """The binary weight of the last forward in training, for the losses of the layer."""

    def __init__(self, geometry: Geometry, weight: Tensor, *, search: float = 0.5) -> None:
        """Start with the scales of ``weight``; its spread is not taken yet."""
        super().__init__(geometry, weight)
        if not 0 <= search <= 1:
            raise ConfigError(f"search={search} is a share of all epochs: need 0 to 1.")
        self.search = search
        self.alpha = nn.Parameter(mean_magnitude(weight).flatten().clone())
        self.register_buffer("spread", torch.zeros(()))
        self.register_buffer("discrete", torch.zeros((), dtype=torch.bool))

    def output_scale(self) -> Tensor:
        """Return alpha."""
        return self.alpha

    def expected(self, weight: Tensor) -> Tensor:
        """Return the soft weight of the search."""
        spread = torch.where(self.spread > 0, self.spread, 1.0).to(weight.dtype)
        return torch.tanh(weight / (math.sqrt(2) * spread))

    def binarize_weight(self, weight: Tensor) -> Tensor:
        """Return the expected weight while searching, else the more likely one."""
        soft = self.expected(weight)
        hard = functional.sign(weight) + (soft - soft.detach())
        if not self.training:
            return hard
        self.used = torch.where(self.discrete, hard, soft)
        return self.used

    def on_epoch(self, epoch: int, epochs: int) -> None:
        """End the search when its share of the epochs is over."""
        self.discrete.fill_(epoch >= self.search * epochs)

    @torch.no_grad()
    def adapt(self, weight: nn.Parameter) -> None:
        """Take spread and scales from the weights of the first epoch, once."""
        new = self.spread == 0
        self.alpha.copy_(torch.where(new, mean_magnitude(weight).flatten(), self.alpha))
        spread = functional.widened(weight).std(correction=0)
        self.spread.copy_(torch.where(new, spread, self.spread))

    def packed_weight(self, weight: Tensor) -> tuple[Tensor, Tensor]:
        """Return the more likely values, in training too."""
        return functional.sign(weight), self.alpha.detach()

    def __getstate__(self) -> dict[str, Any]:
        """Leave the binary weight out of copies: it belongs to one forward's graph."""
        return {**self.__dict__, "used": None}
