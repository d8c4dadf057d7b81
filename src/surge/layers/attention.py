"""Self-attention of a transformers BERT with binary products."""

import importlib
from typing import Any, cast

import torch
from torch import Tensor, nn

from surge.attention import AttentionRule
from surge.errors import ConfigError
from surge.functional import operator, save_inputs
from surge.layers.product import in_units

HOME = "transformers.models.bert.modeling_bert"
PREFIX = "Binary"
FAR_BELOW = -10000.0
"""Added to the score of a key that is hidden."""


def _product_backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor]:
    a, b = ctx.saved_tensors
    return grad @ b.transpose(-1, -2), a.transpose(-1, -2) @ grad


@operator("two_level_product", backward=_product_backward, setup=save_inputs)
def two_level_product(a: Tensor, b: Tensor) -> Tensor:
    """Return ``a @ b`` of factors that are +-c, or 0 and c, as c c' times a sum of whole numbers.

    With the levels inside it, a sum of zero comes out as a rounding error, whose sign the next
    layer takes.
    """
    if not a.numel() or not b.numel():
        return a @ b
    (unit_a, high_a), (unit_b, high_b) = in_units(a), in_units(b)
    return unit_a @ unit_b * (high_a * high_b)


class BinaryAttention(nn.Module):
    """The part that replaces a BERT's ``Q K^T``, softmax and ``P V``; it keeps all names.

    An instance also is of the class it was before, so that transformers still knows it.
    """

    query: nn.Module
    key: nn.Module
    value: nn.Module
    dropout: nn.Module
    rule: AttentionRule
    num_attention_heads: int
    attention_head_size: int

    def bind(self, rule: AttentionRule) -> None:
        """Give the layer its rule, on the device where the layer is."""
        device = next(self.parameters()).device
        self.rule = rule.to(device)
        self.rule.train(self.training)

    def heads(self, x: Tensor) -> Tensor:
        """Return ``[batch, tokens, features]`` as ``[batch, heads, tokens, size]``."""
        shape = (*x.shape[:-1], self.num_attention_heads, self.attention_head_size)
        return x.view(shape).transpose(1, 2)

    def mix(
        self, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        """Return (context, factors) for real-valued heads and an additive mask."""
        # In evaluation as the engine has it; training keeps its one product.
        product = torch.matmul if self.training else two_level_product
        scores = product(self.rule.query(query), self.rule.key(key).transpose(-1, -2))
        scores = scores * self.attention_head_size**-0.5
        if mask is not None:
            scores = scores + mask
        factors = self.rule.weigh(scores, self.dropout)
        context = product(factors, self.rule.value(value).to(factors.dtype))
        return context.transpose(1, 2).flatten(2), factors

    def forward(
        self, hidden_states: Tensor, attention_mask: Tensor | None = None, *_: Any, **more: Any
    ) -> tuple[Tensor, Tensor]:
        """Attend, as transformers calls it; a cache of keys is refused."""
        if more.get("past_key_values") is not None or more.get("past_key_value") is not None:
            raise ConfigError("Binary attention has no cache of keys: use the BERT as an encoder.")
        query, key, value = (
            self.heads(part(hidden_states)) for part in (self.query, self.key, self.value)
        )
        mask = additive(attention_mask, query)
        if getattr(self, "is_causal", False):
            # transformers leaves it to the kernel of its own attention where it can.
            hidden = torch.ones(query.shape[2], query.shape[2], device=query.device).triu(1)
            mask = hidden * FAR_BELOW if mask is None else mask + hidden * FAR_BELOW
        return self.mix(query, key, value, mask)


def additive(mask: Tensor | None, like: Tensor) -> Tensor | None:
    """Return any mask of transformers as a term of the scores: 0, or far below.

    Masks come as None, as booleans or whole numbers that are true where attention is allowed
    (``[batch, tokens]`` or with all four dimensions), or as such a term already.
    """
    if mask is None:
        return None
    if mask.dim() == 2:
        mask = mask[:, None, None, :]
    if mask.is_floating_point():
        # The lowest number of a dtype would be infinite after the next addition.
        return mask.clamp(min=FAR_BELOW).to(like.dtype)
    return (mask == 0).to(like.dtype) * FAR_BELOW


def binary_attention(kind: type[nn.Module]) -> type[BinaryAttention]:
    """Return the binary form of a self-attention class of transformers.

    It is a subclass of both, made when first needed: transformers is not imported before.
    """
    name = PREFIX + kind.__name__
    if name not in globals():
        text = f"{kind.__name__} with binary products."
        made = type(name, (BinaryAttention, kind), {"__module__": __name__, "__doc__": text})
        globals()[name] = made
    return cast(type[BinaryAttention], globals()[name])


def __getattr__(name: str) -> type[BinaryAttention]:
    """Make the binary form of a class of transformers that a stored model names."""
    if name.startswith(PREFIX) and name.endswith("SelfAttention"):
        kind = getattr(importlib.import_module(HOME), name.removeprefix(PREFIX), None)
        if kind is not None:
            return binary_attention(kind)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
