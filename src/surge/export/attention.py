"""torch's own attention, as ``pack`` traces it: with its samples first, and step by step."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from surge.errors import ExportError


@contextmanager
def plain_attention(model: nn.Module) -> Iterator[None]:
    """Let every ``nn.MultiheadAttention`` compute what it does by linear layers and heads.

    Its own way puts tokens first, and a whole encoder may be a single operator of torch.
    """
    layers = {
        name: module
        for name, module in model.named_modules()
        if isinstance(module, nn.MultiheadAttention)
    }
    fast = torch.backends.mha.get_fastpath_enabled()
    try:
        torch.backends.mha.set_fastpath_enabled(False)
        for name, layer in layers.items():
            vars(layer)["forward"] = _forward(name, layer)
        yield
    finally:
        torch.backends.mha.set_fastpath_enabled(fast)
        for layer in layers.values():
            vars(layer).pop("forward", None)


def _forward(name: str, layer: nn.MultiheadAttention) -> Any:
    def forward(
        query: Tensor, key: Tensor, value: Tensor, *masks: Any, **options: Any
    ) -> tuple[Tensor, None]:
        given = [*masks[::2], options.get("key_padding_mask"), options.get("attn_mask")]
        alike = layer.in_proj_weight is not None and query is key and key is value
        added = layer.bias_k is not None or layer.add_zero_attn
        if not (layer.batch_first and alike) or added or any(mask is not None for mask in given):
            raise ExportError(
                f'pack: "{name}" (MultiheadAttention) must attend to its own input, '
                "batch_first=True, without a mask."
            )
        parts = F.linear(query, layer.in_proj_weight, layer.in_proj_bias).chunk(3, dim=2)
        shape = (*query.shape[:2], layer.num_heads, -1)
        queries, keys, values = (part.reshape(shape).transpose(1, 2) for part in parts)
        mixed = F.scaled_dot_product_attention(queries, keys, values)
        return layer.out_proj(mixed.transpose(1, 2).flatten(2)), None

    return forward
