"""BONN: Bayesian priors on the latent kernels and on the features."""

from typing import Any

import torch
from torch import Tensor, nn

from surge.errors import ConfigError
from surge.functional import operator, save_inputs, sign, widened
from surge.method import Geometry, Method, per_filter, register_method

VARIANCE_FLOOR = 1e-6


def _backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor]:
    kernel, vector = ctx.saved_tensors
    passed = grad * ((vector * kernel).abs() <= 1)
    return passed * vector, (passed * kernel).sum(dim=0)


@operator("reconstructed_weight", backward=_backward, setup=save_inputs)
def reconstructed_weight(kernel: Tensor, vector: Tensor) -> Tensor:
    """Return ``mean(vector) sign(kernel)``; gradients as of ``vector * kernel``, clipped at 1."""
    return vector.mean() * sign(kernel)


@register_method("bonn", bits=(1, 1), reference="Gu et al., ICCV 2019, arXiv:1908.06314")
class BONN(Method):
    """BONN (Gu et al. 2019): Bayesian optimised 1-bit CNNs; k is the latent weight.

    Weights   k_b = mean(v) sign(k); v is learnable, of the shape of one filter, from mean(abs(k))
              gradient g v 1{abs(v k) <= 1} to k, sum over filters of g k 1{abs(v k) <= 1} to v
    Inputs    x_b = sign(x)      gradient passes where abs(x) <= 1, else 0
    Loss      l/2 sum over filters of { sum((k_b - v k)^2) with k_b constant
                                        + n [sum((abs(k) - m)^2) / s^2 + N log(s^2)] }
              with l = ``strength``, n = ``variance``, N weights in a filter, and the modes +-m and
              the width s of the prior of every filter
    Schedule  the loss starts with the first announced epoch.   Output scale  none (in k_b).
    Paper vs here: m and s are not learned by gradient but set to where the loss is smallest, the
    mean and standard deviation of abs(k), after every step. Where v starts and n are not stated:
    from 1 the loss would draw every abs(k) to 1, and n weighs a pull away from 0, against which a
    sign must flip; it is 0.001. The feature loss needs features and labels, which no layer has:
    :class:`FeatureLoss`, a mean over the batch (a sum there), which the training loop for images
    asks for; ``feature_strength=0`` leaves it out.
    """

    dropped = ("mode", "width", "active_strength", "vector")

    mode: Tensor
    width: Tensor
    active_strength: Tensor

    def __init__(
        self,
        geometry: Geometry,
        weight: Tensor,
        *,
        strength: float = 1e-4,
        variance: float = 1e-3,
        feature_strength: float = 1e-3,
    ) -> None:
        """Estimate the prior from the weight at hand."""
        super().__init__(geometry, weight)
        if not (strength >= 0 and variance >= 0 and feature_strength >= 0):
            raise ConfigError(
                f"strength={strength}, variance={variance}, feature_strength={feature_strength}: "
                "none may be negative."
            )
        self.strength, self.variance = strength, variance
        self.feature_strength = feature_strength
        self.vector = nn.Parameter(weight.detach().abs().mean().expand_as(weight[0]).clone())
        shape = (geometry.out_features, *(1 for _ in per_filter(weight)))
        self.register_buffer("mode", weight.new_zeros(shape))
        self.register_buffer("width", weight.new_ones(shape))
        self.register_buffer("active_strength", torch.zeros(()))
        self._estimate(weight)

    def scales_signs(self) -> bool:
        """The mean of the vector is in the weight."""
        return True

    def binarize_weight(self, weight: Tensor) -> Tensor:
        """Sign times the mean of the reconstruction vector."""
        return reconstructed_weight(weight, self.vector)

    def _loss(self, weight: Tensor, binary: Tensor) -> Tensor:
        missing = widened(binary - self.vector * weight).square().sum()
        # Not abs(k): at zero the kernel belongs to the positive mode.
        away = widened((weight * sign(weight) - self.mode) / self.width).square().sum()
        spread = weight[0].numel() * 2 * widened(self.width).log().sum()
        return missing + self.variance * (away + spread)

    def extra_loss(self, weight: Tensor) -> Tensor | None:
        """Return the Bayesian kernel loss."""
        if not self.training:
            return None
        binary = reconstructed_weight(weight, self.vector).detach()
        return self.active_strength / 2 * self._loss(weight, binary)

    def feature_loss(self, classes: int, features: int) -> nn.Module | None:
        """Return the loss that draws the features of a class together."""
        if not self.feature_strength:
            return None
        return FeatureLoss(classes, features, strength=self.feature_strength)

    @torch.no_grad()
    def _estimate(self, weight: Tensor) -> None:
        magnitude = widened(weight).abs()
        dims = per_filter(weight)
        spread = magnitude.var(dim=dims, correction=0, keepdim=True)
        self.mode.copy_(magnitude.mean(dim=dims, keepdim=True))
        self.width.copy_(spread.clamp(min=VARIANCE_FLOOR).sqrt())

    def on_epoch(self, epoch: int, epochs: int) -> None:
        """Switch the loss on."""
        self.active_strength.fill_(self.strength)

    def adapt(self, weight: nn.Parameter) -> None:
        """Estimate the prior anew: the weight may have been loaded."""
        self._estimate(weight)

    def on_step(self, weight: nn.Parameter) -> None:
        """Let the prior follow the weight."""
        self._estimate(weight)

    def packed_weight(self, weight: Tensor) -> tuple[Tensor, Tensor]:
        """Return the signs and the mean of the vector, which may be negative."""
        scale = self.vector.detach().mean()
        return sign(weight), scale.expand(self.geometry.out_features)


class FeatureLoss(nn.Module):
    """BONN's feature loss: features of a class are drawn to its centre, as a Gaussian.

    t/2 mean over the batch of { sum((f - c)^2) + sum((f - c)^2 / s^2 + log(s^2)) } with the centre
    c and the width s of the label's class, both learnable; t is ``strength``. Added to the loss by
    a loop that has the features before the last layer (:mod:`surge.train.photos.features`).
    """

    def __init__(self, classes: int, features: int, *, strength: float = 1e-3) -> None:
        """Start with centres at zero and widths of one."""
        super().__init__()
        self.strength = strength
        self.centre = nn.Parameter(torch.zeros(classes, features))
        self.log_variance = nn.Parameter(torch.zeros(classes, features))

    def forward(self, features: Tensor, labels: Tensor) -> Tensor:
        """Return the loss of ``features`` (batch, features) with their ``labels``."""
        square = (widened(features) - self.centre[labels]).square()
        log_variance = self.log_variance[labels]
        terms = square + square * torch.exp(-log_variance) + log_variance
        return self.strength / 2 * terms.sum(dim=1).mean()
