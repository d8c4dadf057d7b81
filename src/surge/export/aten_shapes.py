"""The torch operators that move values: reshapes, pads, slices, joins."""

import math
from typing import Any

import torch
from torch import fx

from surge.export.aten import as_list, handles
from surge.export.aten_attention import VIEWS, as_heads, select_part
from surge.export.builder import Builder
from surge.export.fxnodes import normal_arguments

END = 2**62
"""Torch writes "to the end" as a number near 2^63."""


def _stored(shape: tuple[int, ...], *, channels_first: bool) -> tuple[int, ...]:
    """Return the rows, columns and channels that the engine has of a shape."""
    pixels, channels = shape[1:-1], shape[-1]
    if channels_first:
        pixels, channels = shape[2:], shape[1]
    return (*(1,) * (2 - len(pixels)), *pixels, channels)


def renames(low: Builder, node: fx.Node, x: Any, after: tuple[int, ...]) -> bool:
    """Let a reshape be another name of its input if all values stay; return whether they do."""
    value, before = low.value(x), low.shape(x)
    if len(after) not in (3, 4):
        return False
    now = low.channel_axis(value) == 1
    for own in (now, not now) if len(before) == 3 else (now,):
        held = _stored(before, channels_first=own)
        ordered = 1 in (held[0] * held[1], held[2])  # the same with channels first and last
        for first in (True, False):
            if (ordered or first == own) and _stored(after, channels_first=first) == held:
                low.rename(node, low.in_layout(node, value, own), channels_first=first)
                return True
    return False


@handles("aten.squeeze.dim", "aten.squeeze.dims", "aten.squeeze.default")
def _squeeze(low: Builder, node: fx.Node, a: list[Any]) -> None:
    rank = len(low.shape(a[0]))
    if len(a) == 1 or any(axis % rank == 0 for axis in as_list(a[1])):
        low.refuse(node, "drops the batch, too, where that is one sample; name other dimensions")
    _reshape(low, node, a)


@handles("aten.select.int")
def _select(low: Builder, node: fx.Node, a: list[Any]) -> None:
    x, axis, index = a
    if select_part(low, node, x, axis, index):
        return
    shape = low.shape(x)
    axis = axis % len(shape)
    if axis == 0 or (len(shape) != 3 and shape[axis] != 1):
        low.refuse(node, f"selects from dimension {axis} of a tensor of shape {shape}")
    if len(shape) != 3:
        _reshape(low, node, a)
        return
    source = low.as_rows(node, x) if axis == 1 else low.as_sequence(node, x)
    low.emit(node, "select", [source], numbers={"index": int(index) % shape[axis]})


@handles(*VIEWS)
def _reshape(low: Builder, node: fx.Node, a: list[Any]) -> None:
    before = low.shape(a[0])
    after = tuple(int(size) for size in node.meta["val"].shape)
    if _shuffles(low, node, a[0], after):
        return
    if as_heads(low, node, a[0], after):
        return
    if after == before:
        low.alias[node.name] = low.value(a[0])
    elif len(after) == 2 and after[0] == before[0]:
        # Images have their channels first in torch and last in the engine; tokens last in both.
        first = low.channel_axis(low.value(a[0])) == 1
        low.emit(node, "flatten", [a[0]], numbers={"channels_first": int(first)})
    elif not renames(low, node, a[0], after) and not _in_rows(low, node, a[0], after):
        low.refuse(node, f"reshapes {before} to {after}, batch included")


@handles("aten.channel_shuffle.default")
def _channel_shuffle(low: Builder, node: fx.Node, a: list[Any]) -> None:
    if not low.is_image(a[0]):
        low.refuse(node, "shuffles channels of something other than images")
    low.emit(node, "shuffle", [a[0]], numbers={"groups": int(a[1])})


def _shuffles(low: Builder, node: fx.Node, x: fx.Node, after: tuple[int, ...]) -> bool:
    """Split channels into groups, or join them again, shuffled; return whether a reshape does."""
    before, known = low.shape(x), low.grouped.get(x.name)
    if known is not None:
        groups, second = known
        if after != before or not second:
            low.refuse(node, f"joins groups of channels in another way than shuffled, to {after}")
        low.emit(node, "shuffle", [low.value(x)], numbers={"groups": groups})
        return True
    split = low.is_image(x) and len(after) == 5 and after[3:] == before[2:]
    if not split or after[0] != before[0] or after[1] * after[2] != before[1]:
        return False
    low.alias[node.name] = low.value(x)
    low.grouped[node.name] = (after[1], False)
    return True


def _in_rows(low: Builder, node: fx.Node, x: Any, after: tuple[int, ...]) -> bool:
    """Write the rows of an image as one, or a row as several; return whether a reshape does."""
    value, before = low.value(x), low.shape(x)
    if {len(before), len(after)} != {3, 4}:
        return False
    axis = low.channel_axis(value)
    first = axis == 1
    channels, pixels = (after[1], after[2:]) if first else (after[-1], after[1:-1])
    if channels != before[axis] or math.prod(after) != math.prod(before):
        return False
    low.emit(node, "rows", [x], numbers={"count": pixels[0] if len(pixels) == 2 else 1})
    layouts = low.sequences if len(after) == 3 else low.stacks
    if first == (len(after) == 3):
        layouts.add(node.name)
    return True


@handles(
    "aten.unbind.int", "aten.split.Tensor", "aten.split_with_sizes.default", "aten.chunk.default"
)
def _take_apart(low: Builder, node: fx.Node, a: list[Any]) -> None:
    low.alias[node.name] = low.value(a[0])  # only its parts are read
    if a[0].name in low.heads:
        low.heads[node.name] = low.heads[a[0].name]


@handles("<built-in function getitem>")
def _part(low: Builder, node: fx.Node, a: list[Any]) -> None:
    whole, index = a
    x, sizes, *rest = normal_arguments(whole)
    if "unbind" in str(whole.target):
        _select(low, node, [x, sizes, index])
        return
    shape, axis = low.shape(x), int(rest[0]) % len(low.shape(x))
    parts = [int(part.shape[axis]) for part in whole.meta["val"]]
    before, after = sum(parts[:index]), sum(parts[index + 1 :])
    assert before + parts[index] + after == shape[axis]
    _add_sides(low, node, x, {axis: [-before, -after]})


@handles("aten.pad.default", "aten.constant_pad_nd.default")
def _pad(low: Builder, node: fx.Node, a: list[Any]) -> None:
    x, amounts = a[0], [int(item) for item in a[1]]
    named = "constant" if node.target == "aten.constant_pad_nd.default" else a[2]
    filler = a[2] if isinstance(a[2], int | float) else (a[3] if len(a) > 3 else 0)
    if isinstance(named, str) and named != "constant":
        low.refuse(node, f"pads in mode {named}")
    if filler not in (None, 0, 0.0):
        low.refuse(node, "pads with other values than zero")
    rank = len(low.shape(x))
    sides = {rank - 1 - i // 2: amounts[i : i + 2] for i in range(0, len(amounts), 2)}
    _add_sides(low, node, x, sides)


def _add_sides(low: Builder, node: fx.Node, x: Any, sides: dict[int, list[int]]) -> None:
    """Put zeros before and behind dimensions; a negative number leaves out what is there."""
    sides = {axis: amounts for axis, amounts in sides.items() if any(amounts)}
    value, rank = low.value(x), len(low.shape(x))
    channel = low.channel_axis(value)
    pixels = [axis for axis in range(1, rank) if axis != channel]
    if 0 in sides or (channel in sides and len(sides) > 1):
        low.refuse(node, "pads or slices samples, or both pixels and channels")
    if channel in sides:
        before, after = sides[channel]
        low.emit(node, "pad_channels", [x], numbers={"before": before, "after": after})
        return
    rows, columns = ([0, 0], *(sides.get(axis, [0, 0]) for axis in pixels))[-2:]
    numbers = dict(zip(("top", "bottom", "left", "right"), (*rows, *columns), strict=True))
    low.emit(node, "pad", [x], numbers=numbers)


@handles("aten.slice.Tensor")
def _slice(low: Builder, node: fx.Node, a: list[Any]) -> None:
    x, axis, start, end, step = a
    shape = low.shape(x)
    # The batch that was traced has two samples, others have more.
    far = end is None or end > END or (end >= shape[axis] and axis != 0)
    whole = (start or 0) == 0 and far
    if whole and step == 1:
        low.alias[node.name] = low.value(x)
        return
    if step == 1:
        first, last, _ = slice(start, end).indices(shape[axis])
        _add_sides(low, node, x, {axis: [-first, last - shape[axis]]})
        return
    if not low.is_image(x) or axis not in (2, 3) or not whole:
        low.refuse(node, "leaves values out in another way than every n-th row or column")
    stride = [step, 1] if axis == 2 else [1, step]
    low.emit(node, "subsample", [x], numbers={"stride": stride})


def _prepends(low: Builder, node: fx.Node, tensors: list[Any], axis: int) -> bool:
    """Put constant tokens, the same for every sample, before others, if that is what is joined."""
    *parts, x = tensors
    if not low.is_value(x) or any(low.is_value(part) for part in parts) or not parts:
        return False
    rank = len(low.shape(x))
    rows = torch.cat([low.floats(part) for part in parts], dim=axis)
    if rank != 3 or axis % rank != 1 or not bool((rows == rows[:1]).all()):
        return False
    low.emit(node, "prepend_rows", [low.as_rows(node, x)], weight=rows[0])
    return True


@handles("aten.cat.default")
def _cat(low: Builder, node: fx.Node, a: list[Any]) -> None:
    tensors, axis = a
    if _prepends(low, node, tensors, axis):
        return
    ranks = {len(low.shape(item)) for item in tensors if low.is_value(item)}
    if len(ranks) != 1 or not all(low.is_value(item) for item in tensors):
        low.refuse(node, "joins a constant, or tensors of different kinds")
    first, axis = low.value(tensors[0]), axis % ranks.pop()
    if len(low.shapes[first]) == 3 and axis != 0:
        first = low.in_layout(node, first, axis == 1)
    if axis != low.channel_axis(first):
        low.refuse(node, "joins tensors along another dimension than the channels")
    low.emit(node, "concat", [first, *tensors[1:]])
