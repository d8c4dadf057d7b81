"""FDA-BNN: the slope of sign's Fourier series, and a noise that fades while training."""

import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from surge.functional import operator, save_inputs, sign, widened
from surge.method import Geometry, Method, mean_magnitude, register_method

OMEGA = 0.1
"""Base frequency of the series."""
FIRST_TERMS, MORE_TERMS = 9, 9
BOTTLENECK = 64


def _backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
    x, terms = ctx.saved_tensors
    # The sum of the cosines in closed form: sin(2 (n + 1) a) / (2 sin a) with a = omega x.
    angle = OMEGA * widened(x)
    ratio = torch.sin(2 * (terms + 1) * angle) / (2 * torch.sin(angle))
    total = torch.where(angle.abs() < 1e-6, terms + 1, ratio)
    slope = torch.where(x.abs() <= 1, 4 * OMEGA / math.pi * total, 0.0)
    return (grad * slope).to(x.dtype), None


@operator("sign_fourier", backward=_backward, setup=save_inputs)
def sign_fourier(x: Tensor, terms: Tensor) -> Tensor:
    """Sign whose gradient is the slope of its Fourier series, zero where ``abs(x) > 1``."""
    return sign(x)


def adaptive_noise(u: Tensor, reduce: Tensor, expand: Tensor) -> Tensor:
    """Return ``expand(relu(reduce(u))) + 0.1 sin(u)`` over the last dimension of ``u``."""
    return F.linear(F.relu(F.linear(u, reduce)), expand) + 0.1 * torch.sin(u)


def bottleneck(features: int, like: Tensor) -> tuple[nn.Parameter, nn.Parameter]:
    """Draw the two matrices of a noise module, as torch draws those of linear layers."""
    narrow = max(1, features // BOTTLENECK)
    shapes = ((narrow, features), (features, narrow))
    drawn = (like.new_empty(shape).uniform_(-1, 1) / math.sqrt(shape[1]) for shape in shapes)
    return nn.Parameter(next(drawn)), nn.Parameter(next(drawn))


@register_method("fda", bits=(1, 1), reference="Xu et al., NeurIPS 2021, arXiv:2103.00841")
class FDA(Method):
    """FDA-BNN (Xu et al. 2021): frequency domain approximation; u stands for w or x.

    Weights   w_b = alpha (sign(w) + s noise(w)), alpha = mean(abs(w)) per filter, a constant
    Inputs    x_b = sign(x) + s noise(x)
    Gradient  of sign: (4 o/pi) sum over i = 0..n of cos((2i + 1) o u) where abs(u) <= 1, else 0;
              o = 0.1; w's is multiplied by alpha. Of the noise: exact, to u and to its parameters
    Noise     expand(relu(reduce(u))) + 0.1 sin(u): over all weights of a filter, over the channels
              of an input; squeezed to 1/64, at least to 1; while training only
    Schedule  n = 9 + floor(9 e/E); s = 0.05 (1 + cos(pi (e + 1)/E)), 0 in the last epoch and until
              the first epoch is announced.   Extra loss  none.
    Paper vs here: omega, n and s are BiBench's, since the authors published no training code;
    their evaluation code has one alpha per layer, which is ``layer_scale=True``. BiBench tests
    with the noise of the epoch. Where noise is on, some gradient passes beyond abs(x) = 1 too;
    SURGE's scope goes by sign's alone.
    """

    dropped = (
        "terms",
        "noise_weight",
        "weight_reduce",
        "weight_expand",
        "input_reduce",
        "input_expand",
    )

    terms: Tensor
    noise_weight: Tensor
    weight_reduce: nn.Parameter | None
    weight_expand: nn.Parameter | None
    input_reduce: nn.Parameter | None
    input_expand: nn.Parameter | None

    def __init__(
        self, geometry: Geometry, weight: Tensor, *, noise: bool = True, layer_scale: bool = False
    ) -> None:
        """Draw the noise modules; an embedding has no input to disturb."""
        super().__init__(geometry, weight)
        self.layer_scale = layer_scale
        self.register_buffer("terms", torch.full((), float(FIRST_TERMS)))
        self.register_buffer("noise_weight", torch.zeros(()))
        self.weight_reduce, self.weight_expand = None, None
        self.input_reduce, self.input_expand = None, None
        if noise:
            self.weight_reduce, self.weight_expand = bottleneck(weight[0].numel(), weight)
        if noise and geometry.kind != "embedding":
            self.input_reduce, self.input_expand = bottleneck(geometry.in_features, weight)

    def binarize(self, z: Tensor) -> Tensor:
        """Sign, plus the noise while training."""
        binary = sign_fourier(z, self.terms)
        if not self.training or self.input_reduce is None or self.input_expand is None:
            return binary
        channels = self.geometry.feature_dim(z)
        noise = adaptive_noise(z.movedim(channels, -1), self.input_reduce, self.input_expand)
        return binary + self.noise_weight * noise.movedim(-1, channels)

    def scales_signs(self) -> bool:
        """Unless noise is added."""
        return not self.training or self.weight_reduce is None

    def binarize_weight(self, weight: Tensor) -> Tensor:
        """Sign, plus the noise while training, times the mean magnitude."""
        binary = sign_fourier(weight, self.terms)
        if self.training and self.weight_reduce is not None and self.weight_expand is not None:
            noise = adaptive_noise(weight.flatten(1), self.weight_reduce, self.weight_expand)
            binary = binary + self.noise_weight * noise.view(weight.shape)
        return self.magnitude(weight) * binary

    def magnitude(self, weight: Tensor) -> Tensor:
        """Return alpha, shaped to broadcast over the weight."""
        weight = weight.detach()
        return weight.abs().mean() if self.layer_scale else mean_magnitude(weight)

    def on_epoch(self, epoch: int, epochs: int) -> None:
        """Add terms to the series, and let the noise fade."""
        self.terms.fill_(FIRST_TERMS + MORE_TERMS * epoch // epochs)
        self.noise_weight.fill_(0.05 * (1 + math.cos(math.pi * (epoch + 1) / epochs)))

    def packed_weight(self, weight: Tensor) -> tuple[Tensor, Tensor]:
        """Return bits and alpha; the noise is not part of the trained model."""
        return sign(weight), self.magnitude(weight).flatten()
