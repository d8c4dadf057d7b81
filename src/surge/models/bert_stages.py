"""The stages of BinaryBERT: a BERT of half the width, and its ternary layers split in two."""

import copy
from typing import Any, cast

import torch
from torch import Tensor, nn

from surge.errors import ConfigError
from surge.layers import BinaryLayer, BinaryLinear
from surge.layers.hooks import binary_layers
from surge.layers.split import SplitLayer
from surge.methods.binarybert import BinaryBERT, split_weight


@torch.no_grad()
def halve_(classifier: Any) -> None:
    """Keep the more important half of all heads and of all feed-forward features, in place.

    A head counts by the norm of its values' weights times that of the weights that read it, a
    feature alike. The size of the hidden states stays.
    """
    for layer in classifier.bert.encoder.layer:
        attention, out = layer.attention.self, layer.attention.output.dense
        heads, size = attention.num_attention_heads, attention.attention_head_size
        if heads % 2:
            raise ConfigError(f"A BERT with {heads} heads has no half of them.")
        weight = attention.value.weight.view(heads, size, -1).flatten(1).norm(dim=1)
        reading = out.weight.view(-1, heads, size).transpose(0, 1).flatten(1).norm(dim=1)
        kept = _larger_half(weight * reading)
        rows = (kept[:, None] * size + torch.arange(size)).flatten()
        for part in (attention.query, attention.key, attention.value):
            _keep_rows(part, rows)
        _keep_columns(out, rows)
        attention.num_attention_heads = heads // 2
        attention.all_head_size = heads // 2 * size
        inner, outer = layer.intermediate.dense, layer.output.dense
        features = _larger_half(inner.weight.norm(dim=1) * outer.weight.norm(dim=0))
        _keep_rows(inner, features)
        _keep_columns(outer, features)


def _larger_half(importance: Tensor) -> Tensor:
    return importance.topk(len(importance) // 2).indices.sort().values


def _keep_rows(layer: nn.Linear, rows: Tensor) -> None:
    layer.weight = nn.Parameter(layer.weight[rows].clone())
    layer.bias = nn.Parameter(layer.bias[rows].clone())
    layer.out_features = len(rows)


def _keep_columns(layer: nn.Linear, columns: Tensor) -> None:
    layer.weight = nn.Parameter(layer.weight[:, columns].clone())
    layer.in_features = len(columns)


@torch.no_grad()
def split_(model: nn.Module) -> list[str]:
    """Replace every ternary layer by two binary ones with the same sum, in place.

    Biases are halved; levels of the inputs are copied. Returns the names of the layers.
    """
    chosen = {
        name: layer
        for name, layer in binary_layers(model)
        if isinstance(layer.method, BinaryBERT) and layer.method.ternary
    }
    if not chosen:
        raise ConfigError("split_: this model has no ternary layer of binarybert.")
    for name, layer in chosen.items():
        parent, _, last = name.rpartition(".")
        setattr(model.get_submodule(parent), last, _halves(layer))
    return list(chosen)


def _halves(layer: BinaryLayer) -> SplitLayer:
    weights = split_weight(layer.weight, rows=layer.geometry.kind == "embedding")
    halves = []
    for weight in weights:
        half = copy.deepcopy(layer)
        method = cast(BinaryBERT, half.method)
        method.ternary, method.bits = False, (1, 1)
        half.weight.copy_(weight)
        if isinstance(half, BinaryLinear) and half.bias is not None:
            half.bias.mul_(0.5)
        halves.append(half)
    return SplitLayer(*halves)
