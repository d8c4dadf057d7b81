"""How a method makes the two products of self-attention binary: ``Q K^T`` and ``P V``."""

from collections.abc import Callable

from torch import Tensor, nn

from surge import functional


class AttentionRule(nn.Module):
    """Base of all rules, and the plain straight-through one.

    Queries, keys, values   sign(x)                  gradient passes where abs(x) <= 1
    Probabilities           1 if p > 1/2 else 0      gradient passes where 0 <= p <= 1

    A rule is a module: its learnable scales are saved and trained with the model.
    """

    def query(self, x: Tensor) -> Tensor:
        """Binarise the queries."""
        return functional.sign_clipped(x)

    def key(self, x: Tensor) -> Tensor:
        """Binarise the keys."""
        return functional.sign_clipped(x)

    def value(self, x: Tensor) -> Tensor:
        """Binarise the values."""
        return functional.sign_clipped(x)

    def weigh(self, scores: Tensor, dropout: Callable[[Tensor], Tensor]) -> Tensor:
        """Turn masked scores into the binary factors of the values.

        ``dropout`` belongs to the network; a rule decides where it acts.
        """
        return functional.quantize_unit(dropout(scores.softmax(dim=-1)), 1)
