"""Turn conv -> norm -> sign into a comparison of whole numbers, where no real value is needed.

Everything between a sum of +-1 and the next sign is monotone, so the sign is +1 exactly where the
sum lies in an interval. Its ends are found by asking torch itself, in its own arithmetic: then the
packed network agrees with torch in every case, exact zeros included.
"""

from collections.abc import Callable
from functools import reduce

import torch
from torch import Tensor

from surge.export.graph import Activation, Graph, Node

LARGEST = 0x7F7FFFFF
"""The largest finite fp32 number, as bits."""
INFINITY = float("inf")


def fold_thresholds(graph: Graph) -> None:
    """Replace scale, bias and activation by an interval where only signs are read, in place."""
    for node in graph:
        if node.scale is None or node.bias is None or node.residual is not None:
            continue
        if not node.arithmetic or min(node.scale.numel(), node.bias.numel()) == 1:
            continue
        plain = node.activation is None or not node.activation.vectors
        if plain and _reads_sums(graph, node) and _only_signs_are_read(graph, node):
            low, high = interval(node, node.scale.numel())
            node.scale = node.bias = None
            node.activation = Activation("between", vectors={"low": low, "high": high})


def _reads_sums(graph: Graph, node: Node) -> bool:
    """Return whether a node's value is made of sums of +-1, with at most pools in between."""
    if node.op == "binary_conv2d":
        return True
    source = graph.producer(node.inputs[0]) if node.op == "affine" else None
    while source is not None and source.op == "max_pool":
        source = graph.producer(source.inputs[0])
    return source is not None and source.op == "binary_conv2d" and source.residual is None


MOVES = ("flatten", "subsample", "transpose")
"""Operators that move values and change none: +1 and -1 stay what they are."""


def _only_signs_are_read(graph: Graph, node: Node) -> bool:
    readers = graph.consumers(node.output)
    signs = all(
        _only_signs_are_read(graph, reader)
        if reader.op in MOVES
        else reader.op == "binary_conv2d"
        and reader.shift is None
        and reader.residual != node.output
        for reader in readers
    )
    return bool(readers) and node.output != graph.output and signs


def interval(node: Node, channels: int) -> tuple[Tensor, Tensor]:
    """Return for every channel the values from which and up to which the sign is +1."""
    if node.op == "binary_conv2d":
        assert node.weight is not None
        return _search(node, channels, node.weight[0].numel(), lambda place: place.float())
    return _search(node, channels, LARGEST, _number)


def _number(place: Tensor) -> Tensor:
    """Return the fp32 number with that place among all, counted from zero."""
    bits = torch.where(place < 0, -place - 2**31, place)
    return bits.to(torch.int32).view(torch.float32)


def _search(
    node: Node, channels: int, most: int, value: Callable[[Tensor], Tensor]
) -> tuple[Tensor, Tensor]:
    def positive(place: Tensor) -> Tensor:
        with torch.no_grad():
            start = value(place)[None, :]
            return reduce(lambda t, part: part(t), node.arithmetic or [], start)[0] >= 0

    low = torch.full((channels,), -most, dtype=torch.int64)
    high = -low
    starts, ends = positive(low), positive(high)
    # Narrow to the last place with the first one's answer and the first with the other.
    while bool((high - low > 1).any()):
        middle = (low + high).div(2, rounding_mode="floor")
        same = positive(middle) == starts
        low, high = torch.where(same, middle, low), torch.where(same, high, middle)
    infinity = torch.tensor(INFINITY)
    lowest = torch.where(starts, -infinity, value(high))
    highest = torch.where(ends, infinity, value(low))
    never = ~starts & ~ends
    return torch.where(never, infinity, lowest), torch.where(never, -infinity, highest)
