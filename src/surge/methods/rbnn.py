"""RBNN: weights rotated towards their bits at the start of every epoch."""

import math
from contextlib import nullcontext
from typing import Any

import torch
from torch import Tensor, nn

from surge.functional import operator, save_inputs, sign, unit_variance, wide_default, widened
from surge.method import Geometry, mean_magnitude, register_method, standardize
from surge.methods.irnet import Sharpening

ALTERNATIONS = 3


def peak(x: Tensor, t: Tensor) -> Tensor:
    """Return ``max(0, sqrt(2) t - t^2 abs(x))``, the slope of the training-aware sign."""
    return (math.sqrt(2) * t - t.square() * x.abs()).clamp(min=0)


def _backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
    x, k, t = ctx.saved_tensors
    return (grad * k * peak(x, t)).to(x.dtype), None, None


@operator("sign_training_aware", backward=_backward, setup=save_inputs)
def sign_training_aware(x: Tensor, k: Tensor, t: Tensor) -> Tensor:
    """Sign with the gradient ``k peak(x, t)``; ``k`` and ``t`` are scalar tensors."""
    return sign(x)


def most_square(n: int) -> tuple[int, int]:
    """Return the factors (a, b) of ``n`` with a <= b that are closest to each other.

    >>> most_square(144), most_square(18), most_square(7)
    ((12, 12), (3, 6), (1, 7))
    """
    a = next(i for i in range(math.isqrt(n), 0, -1) if n % i == 0)
    return a, n // a


def random_rotation(size: int, seed: int) -> Tensor:
    """Return a random orthogonal matrix without touching torch's own stream of numbers."""
    generator = torch.Generator().manual_seed(seed)
    drawn = torch.randn(size, size, generator=generator, device="cpu", dtype=wide_default())
    q, r = torch.linalg.qr(drawn)
    rotation: Tensor = q * r.diagonal().sign()
    return rotation


@register_method("rbnn", bits=(1, 1), reference="Lin et al., NeurIPS 2020, arXiv:2009.13055")
class RBNN(Sharpening):
    """RBNN (Lin et al. 2020): rotated binary neural network; a x b is a filter as a matrix.

    Weights   v = (w - mean) / std per filter; r = L^T v R with orthogonal L (a x a), R (b x b)
              u = v + abs(sin(angle)) (r - v), angle learnable per filter, from pi/2
              w_b = sign(u); gradient k max(0, sqrt(2) t - t^2 abs(u)), then through u and v
    Inputs    z = (x - mean) / std per sample, at inference too; x_b = sign(z); gradient
              max(0, sqrt(2) q - q^2 abs(z)), q = max(t, 1), then through the standardisation
    Output    times alpha, learnable per output channel, from mean(abs(w))
    Schedule  t = t_min (t_max / t_min)^(e/E), k = max(1/t, 1). At the start of an epoch, 3 times:
              B = sign(L^T v R); L = V U^T of the SVD of sum(B R^T v^T), R = U V^T of sum(v^T L B)
    Paper vs here: the authors' code holds r constant, so at angle = pi/2 no gradient reaches w
    until weight decay has moved the angles; that is ``detach_rotation=True``, the default follows
    the chain rule. A filter of equal weights counts as zeros, the variance of inputs has a small
    eps; k, t, L and R are saved, and L, R start from a fixed draw.
    """

    dropped = ("angle", "left", "right", "k", "t")

    left: Tensor
    right: Tensor

    def __init__(
        self,
        geometry: Geometry,
        weight: Tensor,
        *,
        t_min: float = 1e-2,
        t_max: float = 10.0,
        detach_rotation: bool = False,
    ) -> None:
        """Start with drawn rotations, at the wide end of the schedule."""
        super().__init__(geometry, weight, t_min=t_min, t_max=t_max)
        self.detach_rotation = detach_rotation
        self.alpha = nn.Parameter(mean_magnitude(weight).flatten().clone())
        self.angle = nn.Parameter(torch.full_like(self.alpha, math.pi / 2))
        a, b = most_square(weight[0].numel())
        self.register_buffer("left", random_rotation(a, seed=0).to(weight))
        self.register_buffer("right", random_rotation(b, seed=1).to(weight))

    def prepare_input(self, x: Tensor) -> Tensor:
        """Standardise every sample."""
        return unit_variance(x, self.geometry.sample_dims(x), centred=True)

    def input_sharpness(self) -> Tensor:
        """Return t as inputs have it, never below 1."""
        return self.t.clamp(min=1)

    def binarize(self, z: Tensor) -> Tensor:
        """Sign with the present surrogate of inputs."""
        return sign_training_aware(z, torch.ones_like(self.t), self.input_sharpness())

    def surrogate_is_zero(self, z: Tensor) -> Tensor:
        """Zero from sqrt(2) / max(t, 1) on."""
        return peak(z, self.input_sharpness()) == 0

    def rotate(self, filters: Tensor) -> Tensor:
        """Return L^T v R for weights of any shape."""
        kind = filters.device.type
        # Half precision would flip signs: outside autocast, in the weight's own type.
        with nullcontext() if kind == "meta" else torch.autocast(kind, enabled=False):
            matrices = filters.reshape(-1, self.left.shape[0], self.right.shape[0])
            return (self.left.T @ matrices @ self.right).reshape(filters.shape)

    def binarize_weight(self, weight: Tensor) -> Tensor:
        """Standardise, turn towards the rotated weight, take the sign."""
        v = standardize(weight)
        rotated = self.rotate(v.detach() if self.detach_rotation else v)
        share = self.geometry.along_weight(self.angle.sin().abs())
        return sign_training_aware(v + share * (rotated - v), self.k, self.t)

    def output_scale(self) -> Tensor:
        """Alpha, which may be negative."""
        return self.alpha

    def packed_scale(self, weight: Tensor) -> Tensor:
        """Alpha, without the work that the bits take."""
        return self.alpha.detach()

    @torch.no_grad()
    def adapt(self, weight: nn.Parameter) -> None:
        """Turn the rotations so that the rotated filters come closer to their signs."""
        left, right = widened(self.left), widened(self.right)
        v = standardize(widened(weight)).reshape(-1, left.shape[0], right.shape[0])
        for _ in range(ALTERNATIONS):
            bits = sign(left.T @ v @ right)
            u, _, vh = torch.linalg.svd((bits @ right.T @ v.mT).sum(dim=0))
            left = vh.T @ u.T
            u, _, vh = torch.linalg.svd((v.mT @ left @ bits).sum(dim=0))
            right = u @ vh
        self.left.copy_(left)
        self.right.copy_(right)
