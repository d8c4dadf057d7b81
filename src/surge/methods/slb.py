"""SLB: weights are searched among -1 and +1 with a softmax that hardens while training."""

import math

import torch
from torch import Tensor

from surge import functional
from surge.errors import ConfigError
from surge.method import Geometry, Method, register_method

AUTHORS_EPOCHS = 500


def temperature_at(progress: float, start: float, end: float, factor: float) -> float:
    """Return T: 1 up to ``start``, then ``factor`` times more each epoch of 500, up to ``end``.

    >>> [round(temperature_at(e / 500, 0.4, 0.9, 1.03), 2) for e in (0, 200, 300, 450, 499)]
    [1.0, 1.0, 19.22, 1619.22, 1619.22]
    """
    return float(factor ** (AUTHORS_EPOCHS * max(0.0, min(progress, end) - start)))


@register_method("slb", bits=(1, 1), reference="Yang et al., NeurIPS 2020, arXiv:2009.08695")
class SLB(Method):
    """SLB (Yang et al. 2020): searching for low-bit weights; no estimator for the weights.

    Weights   every weight has the logits A+ and A-; the layer's own weight is their difference
              L = (A+ - A-) / sqrt(2); P+ and P- are the softmax of T A+ and T A-
              training:      w_b = P+ - P- = tanh(T L / sqrt(2)), exact gradient
              from ``end``:  w_b = sign(L), the more likely value; L gets no gradient any more
              inference:     w_b = sign(L), gradient as in training
    Inputs    x_b = sign(x)      gradient passes where abs(x) <= 1, else 0
    Schedule  T = 1 up to epoch ``start`` E, times ``factor`` every E / 500 epochs up to ``end`` E
    Paper vs here: the authors train for E = 500 epochs; a shorter run reaches their last T, too,
    else its weights would still be far from -1 and +1 when the choice is made. The two logits act
    through their difference alone, and in these orthonormal coordinates a step of SGD on L is the
    step on the pair, momentum and weight decay included (not so for Adam): no parameter more than
    a float layer has, and float checkpoints load. He-normal logits (fan-out) are an L drawn alike;
    the layer's own initialiser decides. The paper's state BatchNorm is re-estimated with the
    discrete weights before every test (there: once T grows).
    """

    recalibrates_norms = True
    dropped = ("temperature", "discrete")

    temperature: Tensor
    discrete: Tensor

    def __init__(
        self,
        geometry: Geometry,
        weight: Tensor,
        *,
        factor: float = 1.03,
        start: float = 0.4,
        end: float = 0.9,
    ) -> None:
        """Start at T = 1."""
        super().__init__(geometry, weight)
        if not (1 <= factor < math.inf and 0 <= start <= end <= 1):
            raise ConfigError(
                f"factor={factor}, start={start}, end={end}: need factor >= 1 and "
                "0 <= start <= end <= 1."
            )
        self.factor, self.span = factor, (start, end)
        self.register_buffer("temperature", torch.ones(()))
        self.register_buffer("discrete", torch.zeros((), dtype=torch.bool))

    def binarize_weight(self, weight: Tensor) -> Tensor:
        """Return the expected weight, or the more likely one."""
        soft = torch.tanh(self.temperature / math.sqrt(2) * weight)
        hard = functional.sign(weight)
        if self.training:
            return torch.where(self.discrete, hard, soft)
        return hard + (soft - soft.detach())

    def on_epoch(self, epoch: int, epochs: int) -> None:
        """Raise the temperature; near the end only the more likely value is left."""
        self.temperature.fill_(temperature_at(epoch / epochs, *self.span, self.factor))
        self.discrete.fill_(epoch >= self.span[1] * epochs)

    def packed_weight(self, weight: Tensor) -> tuple[Tensor, Tensor]:
        """Return the more likely values, in training too."""
        return functional.sign(weight), weight.new_ones(self.geometry.out_features)
