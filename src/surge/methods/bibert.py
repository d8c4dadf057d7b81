"""BiBERT: centred rows, and attention without a softmax."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from surge import functional
from surge.attention import AttentionRule
from surge.functional import operator, save_inputs, widened
from surge.method import Method, mean_magnitude, per_filter, register_method


def _bool_backward(ctx: Any, grad: Tensor) -> Tensor:
    x: Tensor = ctx.saved_tensors[0]
    return grad * (x.abs() < 1)


@operator("bool_clipped", backward=_bool_backward, setup=save_inputs)
def bool_clipped(x: Tensor) -> Tensor:
    """Return 1 where ``x > 0``, else 0; the gradient passes where ``abs(x) < 1``."""
    return (x > 0).to(x.dtype)


class BiAttention(AttentionRule):
    """Signs, and factors that are 1 where a score is positive: no softmax."""

    def weigh(self, scores: Tensor, dropout: Callable[[Tensor], Tensor]) -> Tensor:
        """Return 0 or 1; what the mask pushes below zero is 0."""
        return bool_clipped(dropout(scores))


@register_method("bibert", bits=(1, 1), reference="Qin et al., ICLR 2022, arXiv:2203.06390")
class BiBERT(Method):
    """BiBERT (Qin et al. 2022), for transformers.

    Weights   w_b = mean(abs(w)) sign(v), v = w - mean(w), both per row; the scale is a constant
              gradient passes where abs(v) <= 1, then through the mean
    Inputs    x_b = sign(x)      gradient passes where abs(x) <= 1
    Attention Q, K, V by sign; 1{score > 0} without softmax, gradient where abs(score) < 1
    Schedule  none.   Extra loss  none (direction-matching distillation belongs to the recipe).
    Paper vs here: as the authors' code, except sign(0) = +1 and that its parameters which nothing
    uses are left out. GELU stays in the feed-forward.
    """

    for_transformers = True
    attention = BiAttention

    def scales_signs(self) -> bool:
        """Alpha is in the weight."""
        return True

    def binarize_weight(self, weight: Tensor) -> Tensor:
        """Sign of the centred row, times its mean magnitude."""
        centred = weight - weight.mean(dim=per_filter(weight), keepdim=True)
        return functional.scaled_sign_clipped(centred, mean_magnitude(weight.detach()))


def similarity(x: Tensor, mask: Tensor | None = None) -> Tensor:
    """Return ``X X^T / sqrt(d)`` of ``[..., tokens, d]``; what an additive mask hides is 0."""
    scores: Tensor = x @ x.transpose(-1, -2) / x.shape[-1] ** 0.5
    return scores if mask is None else torch.where(mask <= -100, 0.0, scores)


def direction_mismatch(student: Tensor, teacher: Tensor) -> Tensor:
    """Return ``| s/|s| - t/|t| |``, with norms over the whole tensors."""
    unit_s, unit_t = (x / x.norm().clamp(min=1e-12) for x in map(widened, (student, teacher)))
    # The slope of a norm at zero is not defined; far below any real mismatch it is made zero.
    squares: Tensor = (unit_s - unit_t).square().sum()
    return (squares + 1e-12).sqrt()
