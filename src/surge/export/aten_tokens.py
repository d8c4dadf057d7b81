"""The torch operators of tokens: tables of rows, masks, norms and softmax."""

from typing import Any

import torch
from torch import Tensor, fx

from surge.export.aten import handles
from surge.export.aten_shapes import renames
from surge.export.builder import Builder

EMBEDDING = "aten.embedding.default"


@handles("aten.unsqueeze.default")
def _unsqueeze(low: Builder, node: fx.Node, a: list[Any]) -> None:
    shape = low.shape(a[0])
    axis = int(a[1]) % (len(shape) + 1)
    if 1 <= axis < len(shape) and all(size == 1 for size in shape[1:-1]):
        low.rename(node, low.as_rows(node, a[0]))
    elif axis == 0 or not renames(low, node, a[0], (*shape[:axis], 1, *shape[axis:])):
        low.refuse(node, f"adds dimension {axis} to a tensor of shape {shape}, batch included")


@handles("aten.eq.Scalar")
def _equals(low: Builder, node: fx.Node, a: list[Any]) -> None:
    low.emit(node, "equals", [a[0]], numbers={"number": float(a[1])})


@handles("aten.softmax.int")
def _softmax(low: Builder, node: fx.Node, a: list[Any]) -> None:
    shape = low.shape(a[0])
    axis = low.channel_axis(low.value(a[0]))
    if int(a[1]) % len(shape) != axis:
        low.refuse(node, f"acts on dimension {a[1]} of a tensor of shape {shape}")
    made = low.producer(low.value(a[0]))
    per_channel = tuple(full if i in (0, axis) else 1 for i, full in enumerate(shape))
    if made is not None and made.op == "add" and low.shapes[made.inputs[1]] == per_channel:
        low.emit(node, "softmax", list(made.inputs))  # with a term, such as a mask
    else:
        low.emit(node, "softmax", [a[0]])


@handles("aten.layer_norm.default")
def _layer_norm(low: Builder, node: fx.Node, a: list[Any]) -> None:
    x, sizes, weight, bias, eps = a[:5]
    shape = low.shape(x)
    last = low.channel_axis(low.value(x)) == len(shape) - 1
    if not last or [int(size) for size in sizes] != [shape[-1]]:
        low.refuse(node, f"norms dimensions {list(sizes)} of a tensor of shape {shape}")
    vectors = {"scale": low.floats(weight), "bias": low.floats(bias)}
    low.emit(node, "layer_norm", [x], numbers={"eps": float(eps)}, **vectors)


def _check_numbers(low: Builder, node: fx.Node, numbers: Any) -> None:
    if not low.is_value(numbers) or len(low.shape(numbers)) != 2:
        low.refuse(node, "needs one row of word numbers per sample")


@handles(EMBEDDING)
def _embedding(low: Builder, node: fx.Node, a: list[Any]) -> None:
    if low.is_value(a[0]):
        low.refuse(node, "looks up rows of a computed table")
    _check_numbers(low, node, a[1])
    low.emit(node, "embedding", [a[1]], weight=low.floats(a[0]))


@handles("surge_export.embedding_rows.default")
def _binary_embedding(low: Builder, node: fx.Node, a: list[Any]) -> None:
    numbers, index, _ = a
    _check_numbers(low, node, numbers)
    name, layer = low.traced.layers[index]
    values, scale = (part.detach().float().cpu() for part in layer.packed_weight())
    if not bool((values.abs() == 1).all()):
        low.refuse(node, f'looks up rows of "{name}" that are not +-1')
    low.emit(node, "embedding", [numbers], weight=values, weight_bits=1, row_scale=scale)
    low.nodes[-1].module = name


def note_table(low: Builder, node: fx.Node, a: list[Any]) -> None:
    """Remember of which table a constant is some rows in a row: the file holds the table."""
    if str(node.target) != EMBEDDING:
        return
    table, numbers = low.constant(a[0]), low.constant(a[1])
    if not isinstance(table, Tensor) or not isinstance(numbers, Tensor) or not numbers.numel():
        return
    flat = numbers.reshape(-1)
    first = int(flat[0])
    if torch.equal(flat.cpu(), torch.arange(first, first + flat.numel())):
        low.tables[node.name] = (table, first)
