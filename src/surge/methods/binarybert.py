"""BinaryBERT: a ternary network of half the width, split into a binary one."""

import torch
from torch import Tensor

from surge import functional
from surge.functional import operator, pass_to_first
from surge.method import Geometry, register_method
from surge.methods.bit import ElasticInputs

THRESHOLD = 0.7


def ternary_parts(weight: Tensor, *, rows: bool = False) -> tuple[Tensor, Tensor]:
    """Return (values -1, 0, +1; scale) of the ternary rule, per row or for the whole tensor.

    A weight counts where abs(w) > 0.7 mean(abs(w)); the scale is the mean magnitude of those.
    """
    magnitude = functional.widened(weight.detach()).abs()
    dims = tuple(range(1, weight.dim())) if rows else tuple(range(weight.dim()))
    kept = magnitude > THRESHOLD * magnitude.mean(dim=dims, keepdim=True)
    count = kept.sum(dim=dims, keepdim=True).clamp(min=1)
    scale = (magnitude * kept).sum(dim=dims, keepdim=True) / count
    return functional.sign(weight) * kept, scale.to(weight.dtype)


@operator("ternary_identity", backward=pass_to_first)
def ternary_identity(weight: Tensor, rows: bool) -> Tensor:
    """Return the ternary weight; the gradient passes unchanged."""
    values, scale = ternary_parts(weight, rows=rows)
    return values * scale


def split_weight(weight: Tensor, *, rows: bool = False) -> tuple[Tensor, Tensor]:
    """Split a latent ternary weight into two latent binary ones with the same sum.

    With t the ternary values, s their scale, n the number of weights, n0 of zeros among t::

        where t = 0    w1 = w + b, w2 = -b  (w > 0);    w1 = b, w2 = w - b  (else)
        elsewhere      w1 = a w,   w2 = (1 - a) w
        b = (s n - sum |w|) / (2 n0)
        a = (sum_nz |w| + sum_0 |w2| - sum_0 |w1|) / (2 sum_nz |w|)

    Then both halves have mean magnitude s / 2, so that their binary weights add up to the ternary
    one: (s/2)(sign w1 + sign w2) = s t.
    """
    w = weight.detach()
    values, scale = ternary_parts(w, rows=rows)
    dims = tuple(range(1, w.dim())) if rows else tuple(range(w.dim()))
    zero = values == 0

    def total(x: Tensor) -> Tensor:
        return x.sum(dim=dims, keepdim=True)

    count = total(torch.ones_like(w))
    b = (scale * count - total(w.abs())) / (2 * total(zero.to(w.dtype)).clamp(min=1))
    first = torch.where(w > 0, w + b, b.expand_as(w))
    second = torch.where(w > 0, (-b).expand_as(w), w - b)
    kept = total(w.abs() * ~zero)
    gap = total(second.abs() * zero) - total(first.abs() * zero)
    a = (kept + gap) / (2 * kept.clamp(min=1e-30))
    return torch.where(zero, first, a * w), torch.where(zero, second, (1 - a) * w)


@register_method("binarybert", bits=(1, 1), reference="Bai et al., ACL 2021, arXiv:2012.15701")
class BinaryBERT(ElasticInputs):
    """BinaryBERT (Bai et al. 2021), for transformers; ``ternary`` is its first stage.

    Weights   w_b = mean(abs(w)) sign(w) over the whole tensor (an embedding: per row)
              ternary: s t, t = sign(w) where abs(w) > 0.7 mean(abs(w)) else 0, s = mean there
              gradient passes unchanged
    Inputs    two levels with a learnable distance, as in BiT: a sign(x), or {0, a} with
              ``unsigned`` (behind the activation and the softmax); no shift
              gradients of x and of a: see ``surge.layers.elastic``
    Schedule  half the width in ternary, then ``split_weight``, then fine-tuning.
    Paper vs here: sign(0) = +1. Inputs of one bit are outside what the paper intends (it uses 4 and
    8 bits with learnt steps, where its code has no 1-bit form): BiT's levels stand for them, and
    the accuracy collapses. Both stages learn from hidden states and logits at once, as BiT does;
    the paper's learn from hidden states and attention scores first, then from logits. Scores are
    paired head by head, and a task's teacher has twice the heads of the network of half the width.
    """

    def __init__(
        self,
        geometry: Geometry,
        weight: Tensor,
        *,
        unsigned: bool = False,
        ternary: bool = False,
    ) -> None:
        """Choose the stage."""
        super().__init__(geometry, weight, unsigned=unsigned)
        self.ternary = ternary
        if ternary:
            self.bits = (2, 1)

    def binarize_weight(self, weight: Tensor) -> Tensor:
        """Sign or ternary value, times the scale."""
        if self.ternary:
            return ternary_identity(weight, self.rows)
        return functional.scaled_sign_identity(weight, self.magnitude(weight))

    def packed_weight(self, weight: Tensor) -> tuple[Tensor, Tensor]:
        """Return the values, which in the ternary stage include 0, and the scales."""
        if not self.ternary:
            return super().packed_weight(weight)
        with torch.no_grad():
            values, scale = ternary_parts(weight, rows=self.rows)
            return values, scale.flatten()
