"""The torch operators that make one value of many: pools, means, norms of whole samples."""

from typing import Any

import torch
from torch import fx

from surge.export.aten import MOST, as_list, handles, pair, window
from surge.export.builder import Builder


def _images(low: Builder, node: fx.Node, x: Any) -> tuple[int, ...]:
    shape = low.shape(x)
    if not low.is_image(x):
        low.refuse(node, f"needs images, but gets a tensor of shape {shape}, batch included")
    return shape


def _pooled(low: Builder, node: fx.Node, x: Any) -> tuple[str, bool]:
    """Return the input of a pool in the layout it needs, and whether it is a sequence."""
    flat = "pool1d" in str(node.target)
    if flat and len(low.shape(x)) == 3:
        return low.as_sequence(node, x), True
    _images(low, node, x)
    return low.value(x), False


@handles("aten.max_pool2d.default", "aten.max_pool1d.default")
def _max_pool(low: Builder, node: fx.Node, a: list[Any]) -> None:
    x, kernel, stride, padding, dilation, _ = a
    source, flat = _pooled(low, node, x)
    numbers = window(as_list(kernel), stride or kernel, padding, dilation, flat=flat)
    _hang_over(node, numbers, low.shape(x)[2:])
    if max(numbers["dilation"]) > 1 and any(numbers["padding"]):
        low.refuse(node, "has both dilation and padding")
    low.emit(node, "max_pool", [source], numbers=numbers)


@handles("aten.avg_pool2d.default", "aten.avg_pool1d.default")
def _avg_pool(low: Builder, node: fx.Node, a: list[Any]) -> None:
    x, kernel, stride, padding, _, include_pad, divisor = [*a, None][:7]
    source, flat = _pooled(low, node, x)
    numbers = window(as_list(kernel), stride or kernel, padding, 1, flat=flat)
    size = numbers["kernel"]
    over = _hang_over(node, numbers, low.shape(x)[2:])
    if over and include_pad and any(numbers["padding"]) and divisor is None:
        low.refuse(node, "counts a part of the border in windows over the edge (ceil_mode=True)")
    if divisor is not None and not 1 <= divisor <= MOST:
        low.refuse(node, f"divides by {divisor}; accepted are 1 to {MOST}")
    if divisor is not None:
        numbers["divisor"] = int(divisor)
    elif not over and (include_pad or not any(numbers["padding"])):
        numbers["divisor"] = size[0] * size[1]
    low.emit(node, "avg_pool", [source], numbers=numbers)


@handles("aten.linalg_vector_norm.default")
def _norm(low: Builder, node: fx.Node, a: list[Any]) -> None:
    x, order, dims, keep = a[:4]
    shape, channel = low.shape(x), low.channel_axis(low.value(x))
    axes = sorted(int(d) % len(shape) for d in dims or ())
    if order != 2 or not keep or axes != [axis for axis in (1, 2, 3) if axis != channel]:
        low.refuse(node, f"measures dimensions {axes} of a tensor of shape {shape}")
    squares = low.emit_inner(node, "multiply", [low.value(x)] * 2)
    size = [shape[axis] for axis in axes]
    whole = window(size, size, 0, 1) | {"divisor": 1}
    sums = low.inner(node, node.meta["val"].shape)
    low.append(node, "avg_pool", [squares], output=sums, numbers=whole)
    if channel == 3:
        low.stacks.add(sums)
    low.emit(node, "square_root", [sums])


def _hang_over(node: fx.Node, numbers: dict[str, Any], sizes: tuple[int, ...]) -> bool:
    """Let windows hang over the edge, if any does; return whether one does."""
    made = node.meta["val"].shape[2:]
    for axis, size, wanted in zip((0, 1)[-len(sizes) :], sizes, made, strict=True):
        span = numbers["dilation"][axis] * (numbers["kernel"][axis] - 1) + 1
        room = size + 2 * numbers["padding"][axis] - span
        if room // numbers["stride"][axis] + 1 != wanted:
            numbers["ceiling"] = 1
    return "ceiling" in numbers


def _pool_all(low: Builder, node: fx.Node, x: Any, size: list[int]) -> None:
    numbers = {"kernel": size, "stride": size, "padding": [0, 0], "dilation": [1, 1]}
    low.emit(node, "avg_pool", [x], numbers=numbers | {"divisor": size[0] * size[1]})


@handles("aten.adaptive_avg_pool2d.default")
def _adaptive(low: Builder, node: fx.Node, a: list[Any]) -> None:
    shape = _images(low, node, a[0])
    wanted = pair(a[1])
    if any(size % target for size, target in zip(shape[2:], wanted, strict=True)):
        low.refuse(node, f"pools {shape[2:]} to {wanted} with windows of different sizes")
    _pool_all(low, node, a[0], [s // t for s, t in zip(shape[2:], wanted, strict=True)])


@handles("aten.adaptive_avg_pool1d.default")
def _adaptive_flat(low: Builder, node: fx.Node, a: list[Any]) -> None:
    source, _ = _pooled(low, node, a[0])
    length, wanted = low.shape(a[0])[2], as_list(a[1])[0]
    if length % wanted:
        low.refuse(node, f"pools {length} to {wanted} with windows of different sizes")
    _pool_all(low, node, source, [1, length // wanted])


@handles("aten.mean.dim")
def _mean(low: Builder, node: fx.Node, a: list[Any]) -> None:
    x, dims, keep, _ = a
    shape = low.shape(x)
    axes = sorted(int(d) % len(shape) for d in dims or range(len(shape)))
    channel = low.channel_axis(low.value(x))
    if axes == [channel] and keep:
        low.emit(node, "channel_mean", [x])
    elif axes == list(range(1, len(shape))) and keep:
        low.emit(node, "sample_mean", [x])
    elif len(shape) == 3 and len(axes) == 1 and axes != [0]:
        (axis,) = axes
        source = low.as_sequence(node, x) if axis == 2 else low.as_rows(node, x)
        _pool_all(low, node, source, [1, shape[axis]])
    elif len(shape) == 4 and axes == [axis for axis in (1, 2, 3) if axis != channel]:
        _pool_all(low, node, x, [shape[axis] for axis in axes])
    else:
        low.refuse(node, f"averages dimensions {axes} of a tensor of shape {shape}")


@handles("aten.var.correction", "aten.var.dim")
def _variance(low: Builder, node: fx.Node, a: list[Any]) -> None:
    x, dims, correction, keep = a  # of var.dim: whether it is unbiased
    shape = low.shape(x)
    axes = sorted(int(d) % len(shape) for d in dims or range(len(shape)))
    correction = 1 if correction is None else int(correction)
    if axes != list(range(1, len(shape))) or not keep or correction not in (0, 1):
        low.refuse(node, f"measures dimensions {axes} of a tensor of shape {shape}")
    low.emit(node, "sample_variance", [x], numbers={"correction": correction})


@handles("aten.group_norm.default")
def _group_norm(low: Builder, node: fx.Node, a: list[Any]) -> None:
    x, groups, weight, bias, eps = a[:5]
    _images(low, node, x)
    if groups != 1:
        low.refuse(node, f"norms {groups} groups of channels; the packed format has one group")
    mean = low.inner(node, (low.shape(x)[0], 1, 1, 1))
    low.append(node, "sample_mean", [low.value(x)], output=mean)
    variance = low.inner(node, low.shapes[mean])
    low.append(node, "sample_variance", [low.value(x)], output=variance, numbers={"correction": 0})
    spread = low.emit_inner(node, "affine", [variance], bias=torch.tensor(float(eps)))
    spread = low.emit_inner(node, "square_root", [spread])
    centred = low.emit_inner(node, "subtract", [low.value(x), mean])
    normed = low.emit_inner(node, "divide", [centred, spread])
    low.emit(node, "affine", [normed], scale=low.floats(weight), bias=low.floats(bias))
