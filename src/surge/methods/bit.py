"""BiT: elastic binarisation of transformers."""

import torch
from torch import Tensor, nn

from surge import functional
from surge.attention import AttentionRule
from surge.layers.elastic import Elastic
from surge.method import Geometry, Method, mean_magnitude, register_method


class ElasticAttention(AttentionRule):
    """Signed elastic queries, keys and values; probabilities {0, a}, after softmax and dropout."""

    def __init__(self) -> None:
        """One learnable level each."""
        super().__init__()
        self.query_level, self.key_level, self.value_level = Elastic(), Elastic(), Elastic()
        self.probability_level = Elastic(unsigned=True)

    def query(self, x: Tensor) -> Tensor:
        """Return +-a."""
        return self.query_level(x)  # type: ignore[no-any-return]

    def key(self, x: Tensor) -> Tensor:
        """Return +-a."""
        return self.key_level(x)  # type: ignore[no-any-return]

    def value(self, x: Tensor) -> Tensor:
        """Return +-a."""
        return self.value_level(x)  # type: ignore[no-any-return]

    def weigh(self, scores: Tensor, dropout: nn.Module) -> Tensor:  # type: ignore[override]
        """Return 0 or a."""
        return self.probability_level(dropout(scores.softmax(dim=-1)))  # type: ignore[no-any-return]


class ElasticInputs(Method):
    """What BiT and BinaryBERT share: inputs of two learnt levels, one scale for a whole weight."""

    for_transformers = True
    learns_at_input = True
    two_levels = True
    attention = ElasticAttention

    level: Elastic | None

    def __init__(self, geometry: Geometry, weight: Tensor, *, unsigned: bool) -> None:
        """Start at level 1 until ``initialize_`` saw a batch; an embedding has no input."""
        super().__init__(geometry, weight)
        self.rows = geometry.kind == "embedding"
        self.unit_inputs = unsigned
        self.level = None if self.rows else Elastic(unsigned=unsigned)

    @classmethod
    def behind_relu(cls) -> dict[str, bool]:
        """Inputs that are hardly ever negative become 0 or a."""
        return {"unsigned": True}

    def binarize(self, z: Tensor) -> Tensor:
        """Take the nearer of the two levels."""
        assert self.level is not None
        return self.level(z)  # type: ignore[no-any-return]

    def input_rule(self) -> tuple[str, Tensor | None] | None:
        """Name the elastic rule."""
        return None if self.level is None else self.level.rule

    def surrogate_is_zero(self, z: Tensor) -> Tensor:
        """Zero outside the levels."""
        assert self.level is not None
        return self.level.outside(z)

    def magnitude(self, weight: Tensor) -> Tensor:
        """Return mean(abs(w)) of the whole weight, or of every row of an embedding; a constant."""
        weight = weight.detach()
        return mean_magnitude(weight) if self.rows else weight.abs().mean()


@register_method("bit", bits=(1, 1), reference="Liu et al., NeurIPS 2022, arXiv:2205.13016")
class BiT(ElasticInputs):
    """BiT (Liu et al. 2022), for transformers.

    Weights   w_b = mean(abs(w)) sign(w - mean(w)), both over the whole tensor and constants
              gradient passes unchanged; an embedding has one scale per row, the same centre
    Inputs    z = x + shift, learnable per input feature, from 0
              x_b = a sign(z), or a clip(round(z / a), 0, 1) with ``unsigned`` (behind a ReLU)
              gradients of z and of the learnable level a: see ``surge.layers.elastic``
    Attention Q, K, V signed elastic, probabilities unsigned elastic; ReLU in the feed-forward
    Schedule  none.   Extra loss  none (distillation belongs to the recipe).
    Paper vs here: as the authors' code, except sign(0) = +1, and that whether a level is
    initialised is saved: the code takes a level of exactly 1 for a fresh one. Levels start from a
    batch without dropout, in the code from the first one of training. The code's shifts of Q, K and
    V never reach the result and are left out.
    """

    relu_feed_forward = True

    shift: nn.Parameter | None

    def __init__(self, geometry: Geometry, weight: Tensor, *, unsigned: bool = False) -> None:
        """Start without shift."""
        super().__init__(geometry, weight, unsigned=unsigned)
        self.shift = None if self.rows else nn.Parameter(torch.zeros(geometry.in_features))

    def prepare_input(self, x: Tensor) -> Tensor:
        """Move every input feature."""
        assert self.shift is not None
        return x + self.geometry.along_input(self.shift).to(x.dtype)

    def binarize_weight(self, weight: Tensor) -> Tensor:
        """Sign of the centred weight, times the mean magnitude."""
        centred = weight - weight.detach().mean()
        return functional.scaled_sign_identity(centred, self.magnitude(weight))
