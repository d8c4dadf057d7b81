"""Turn conv -> norm -> sign into a comparison of whole numbers, where no real value is needed.

Everything between a sum of +-1 and the next sign is monotone, so the sign is +1 exactly where the
sum lies in an interval. Its ends are found by asking torch itself, in its own arithmetic: then the
packed network agrees with torch in every case, exact zeros included.
"""

from collections.abc import Callable
from functools import reduce

import torch
from torch import Tensor

from surge.export.graph import Activation, Graph, Node, plus

LARGEST = 0x7F7FFFFF
"""The largest finite fp32 number, as bits."""
INFINITY = float("inf")


def fold_thresholds(graph: Graph) -> None:
    """Replace the epilogue by an interval where only signs are read, in place.

    A shift that all readers add before their sign, and the slopes of a PReLU, become part of it.
    """
    for node in graph:
        readers = _readers_of_signs(graph, node)
        shifts = [reader.shift for reader in readers]
        if not shifts or not _reads_sums(graph, node) or not _folds(node, shifts):
            continue
        before = _vectors(node)
        if shifts[0] is not None:
            before.append(shifts[0])
            node.arithmetic = [*(node.arithmetic or []), plus(shifts[0])]
        ends = interval(node, max(part.numel() for part in before))
        node.scale = node.bias = None
        node.activation = Activation("between", vectors=_stored(ends, before))
        for reader in readers:
            reader.shift = None
        more = [shift for shift in shifts[1:] if shift is not None]
        graph.folded += _bytes(before + more) - _bytes(_vectors(node))


def _vectors(node: Node) -> list[Tensor]:
    inner = {} if node.activation is None else node.activation.vectors
    return [part for part in (node.scale, node.bias, *inner.values()) if part is not None]


def _bytes(parts: list[Tensor]) -> int:
    """Return what vectors take in a file, where numbers are part of the text."""
    return sum(part.nbytes for part in parts if part.dim() > 0)


def _folds(node: Node, shifts: list[Tensor | None]) -> bool:
    """Return whether one known, monotone function stands before all signs."""
    first = shifts[0]
    if first is None:
        shared = all(shift is None for shift in shifts)
    else:
        shared = all(shift is not None and torch.equal(shift, first) for shift in shifts)
    # What is rounded once is rounded as in torch already.
    composed = node.scale is not None and (node.bias is not None or first is not None)
    known = bool(node.arithmetic) and node.residual is None
    return shared and composed and known and _monotone(node.activation, first)


def _monotone(activation: Activation | None, shift: Tensor | None) -> bool:
    """Return whether the sign changes at most once; a bare PReLU that falls is never negative."""
    slope = None if activation is None else activation.vectors.get("slope")
    if activation is None or slope is None:
        return True
    return bool((slope >= 0).all()) or (activation.kind == "prelu" and shift is None)


def _stored(ends: tuple[Tensor, Tensor], before: list[Tensor]) -> dict[str, Tensor]:
    """Return the ends by name; one that is the same everywhere is a number if that saves bytes.

    A file has no infinite numbers, and no finite one lies beyond the largest.
    """
    stored = dict(zip(("low", "high"), ends, strict=True))
    largest = torch.finfo(torch.float32).max
    for key, end in stored.items():
        larger = _bytes(list(stored.values())) > _bytes(before)
        if larger and bool((end == end[0]).all()):
            stored[key] = end[0].clamp(-largest, largest)
    return stored


def _reads_sums(graph: Graph, node: Node) -> bool:
    """Return whether a node's value is made of sums of +-1, with at most pools in between."""
    if node.op == "binary_conv2d":
        return True
    source = graph.producer(node.inputs[0]) if node.op == "affine" else None
    while source is not None and source.op == "max_pool":
        source = graph.producer(source.inputs[0])
    return source is not None and source.op == "binary_conv2d" and source.residual is None


MOVES = ("flatten", "rows", "subsample", "transpose")
"""Operators that move values and change none: +1 and -1 stay what they are."""


def _readers_of_signs(graph: Graph, node: Node) -> list[Node]:
    """Return the binary layers that read a value, moved at most; none if anything else does."""
    found: list[Node] = []
    for reader in graph.consumers(node.output):
        behind = [reader] if reader.op == "binary_conv2d" else []
        if reader.op in MOVES:
            behind = _readers_of_signs(graph, reader)
        other_channels = reader.op in ("flatten", "transpose") and any(
            layer.shift is not None and layer.shift.numel() > 1 for layer in behind
        )
        if not behind or other_channels or reader.residual == node.output:
            return []
        found += behind
    return [] if node.output == graph.output else found


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
