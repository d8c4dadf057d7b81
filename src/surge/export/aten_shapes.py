"""The torch operators that move or pool values: pools, pads, slices, reshapes."""

from typing import TYPE_CHECKING, Any

from torch import fx

from surge.export.aten import MOST, handles, pair, window
from surge.export.aten_attention import as_heads

if TYPE_CHECKING:
    from surge.export.lower import Lowering

END = 2**62
"""Torch writes "to the end" as a number near 2^63."""


def _images(low: "Lowering", node: fx.Node, x: Any) -> tuple[int, ...]:
    shape = low.shape(x)
    if len(shape) != 4:
        low.refuse(node, f"needs images, but gets a tensor of shape {shape}, batch included")
    return shape


def _pooled(low: "Lowering", node: fx.Node, x: Any) -> tuple[str, bool]:
    """Return the input of a pool in the layout it needs, and whether it is a sequence."""
    flat = "pool1d" in str(node.target)
    if flat and len(low.shape(x)) == 3:
        return low.as_sequence(node, x), True
    _images(low, node, x)
    return low.value(x), False


@handles("aten.max_pool2d.default", "aten.max_pool1d.default")
def _max_pool(low: "Lowering", node: fx.Node, a: list[Any]) -> None:
    x, kernel, stride, padding, dilation, ceil_mode = a
    source, flat = _pooled(low, node, x)
    numbers = window(as_list(kernel), stride or kernel, padding, dilation, flat=flat)
    _check_ceiling(low, node, numbers, ceil_mode, low.shape(x)[2:])
    if max(numbers["dilation"]) > 1 and any(numbers["padding"]):
        low.refuse(node, "has both dilation and padding")
    low.emit(node, "max_pool", [source], numbers=numbers)


def as_list(value: Any) -> list[int]:
    """Return a number, or several, as a list."""
    return list(value) if isinstance(value, list | tuple) else [int(value)]


@handles("aten.avg_pool2d.default", "aten.avg_pool1d.default")
def _avg_pool(low: "Lowering", node: fx.Node, a: list[Any]) -> None:
    x, kernel, stride, padding, ceil_mode, include_pad, divisor = [*a, None][:7]
    source, flat = _pooled(low, node, x)
    numbers = window(as_list(kernel), stride or kernel, padding, 1, flat=flat)
    size = numbers["kernel"]
    _check_ceiling(low, node, numbers, ceil_mode, low.shape(x)[2:])
    if divisor is not None and not 1 <= divisor <= MOST:
        low.refuse(node, f"divides by {divisor}; accepted are 1 to {MOST}")
    if divisor is not None:
        numbers["divisor"] = int(divisor)
    elif include_pad or not any(numbers["padding"]):
        numbers["divisor"] = size[0] * size[1]
    low.emit(node, "avg_pool", [source], numbers=numbers)


def _check_ceiling(
    low: "Lowering",
    node: fx.Node,
    numbers: dict[str, Any],
    ceil_mode: bool,
    sizes: tuple[int, ...],
) -> None:
    """Refuse windows that hang over the edge; a ceiling that changes nothing is fine."""
    made = node.meta["val"].shape[2:] if ceil_mode else ()
    for axis, size, wanted in zip((0, 1)[-len(sizes) :], sizes, made, strict=False):
        span = numbers["dilation"][axis] * (numbers["kernel"][axis] - 1) + 1
        room = size + 2 * numbers["padding"][axis] - span
        if room // numbers["stride"][axis] + 1 != wanted:
            low.refuse(node, "has windows over the edge (ceil_mode=True)")


def _pool_all(low: "Lowering", node: fx.Node, x: Any, size: list[int]) -> None:
    numbers = {"kernel": size, "stride": size, "padding": [0, 0], "dilation": [1, 1]}
    low.emit(node, "avg_pool", [x], numbers=numbers | {"divisor": size[0] * size[1]})


@handles("aten.adaptive_avg_pool2d.default")
def _adaptive(low: "Lowering", node: fx.Node, a: list[Any]) -> None:
    shape = _images(low, node, a[0])
    wanted = pair(a[1])
    if any(size % target for size, target in zip(shape[2:], wanted, strict=True)):
        low.refuse(node, f"pools {shape[2:]} to {wanted} with windows of different sizes")
    _pool_all(low, node, a[0], [s // t for s, t in zip(shape[2:], wanted, strict=True)])


@handles("aten.adaptive_avg_pool1d.default")
def _adaptive_flat(low: "Lowering", node: fx.Node, a: list[Any]) -> None:
    source, _ = _pooled(low, node, a[0])
    length, wanted = low.shape(a[0])[2], as_list(a[1])[0]
    if length % wanted:
        low.refuse(node, f"pools {length} to {wanted} with windows of different sizes")
    _pool_all(low, node, source, [1, length // wanted])


@handles("aten.mean.dim")
def _mean(low: "Lowering", node: fx.Node, a: list[Any]) -> None:
    x, dims, keep, _ = a
    shape = low.shape(x)
    axes = sorted(int(d) % len(shape) for d in dims or range(len(shape)))
    if axes == [low.channel_axis(low.value(x))] and keep:
        low.emit(node, "channel_mean", [x])
    elif axes == list(range(1, len(shape))) and keep:
        low.emit(node, "sample_mean", [x])
    elif len(shape) == 3 and axes == [2]:
        _pool_all(low, node, low.as_sequence(node, x), [1, shape[2]])
    elif len(shape) == 4 and axes == [2, 3]:
        _pool_all(low, node, x, [shape[2], shape[3]])
    else:
        low.refuse(node, f"averages dimensions {axes} of a tensor of shape {shape}")


@handles("aten.var.correction", "aten.var.dim")
def _variance(low: "Lowering", node: fx.Node, a: list[Any]) -> None:
    x, dims, correction, keep = a  # of var.dim: whether it is unbiased
    shape = low.shape(x)
    axes = sorted(int(d) % len(shape) for d in dims or range(len(shape)))
    correction = 1 if correction is None else int(correction)
    if axes != list(range(1, len(shape))) or not keep or correction not in (0, 1):
        low.refuse(node, f"measures dimensions {axes} of a tensor of shape {shape}")
    low.emit(node, "sample_variance", [x], numbers={"correction": correction})


@handles("aten.abs.default")
def _abs(low: "Lowering", node: fx.Node, a: list[Any]) -> None:
    low.emit(node, "absolute", [a[0]])


def _stored(shape: tuple[int, ...], *, channels_first: bool) -> tuple[int, ...]:
    """Return the rows, columns and channels that the engine has of a shape."""
    pixels, channels = shape[1:-1], shape[-1]
    if channels_first:
        pixels, channels = shape[2:], shape[1]
    return (*(1,) * (2 - len(pixels)), *pixels, channels)


def renames(low: "Lowering", node: fx.Node, x: Any, after: tuple[int, ...]) -> bool:
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
def _squeeze(low: "Lowering", node: fx.Node, a: list[Any]) -> None:
    rank = len(low.shape(a[0]))
    if len(a) == 1 or any(axis % rank == 0 for axis in as_list(a[1])):
        low.refuse(node, "drops the batch, too, where that is one sample; name other dimensions")
    _reshape(low, node, a)


@handles("aten.select.int")
def _select(low: "Lowering", node: fx.Node, a: list[Any]) -> None:
    x, axis, index = a
    shape = low.shape(x)
    axis = axis % len(shape)
    if axis == 0 or (len(shape) != 3 and shape[axis] != 1):
        low.refuse(node, f"selects from dimension {axis} of a tensor of shape {shape}")
    if len(shape) != 3:
        _reshape(low, node, a)
        return
    source = low.as_rows(node, x) if axis == 1 else low.as_sequence(node, x)
    low.emit(node, "select", [source], numbers={"index": int(index) % shape[axis]})


@handles("aten.flatten.using_ints", "aten.view.default", "aten.reshape.default")
def _reshape(low: "Lowering", node: fx.Node, a: list[Any]) -> None:
    before = low.shape(a[0])
    after = tuple(int(size) for size in node.meta["val"].shape)
    if as_heads(low, node, a[0], after):
        return
    if after == before:
        low.alias[node.name] = low.value(a[0])
    elif len(after) == 2 and after[0] == before[0]:
        # Images have their channels first in torch and last in the engine; tokens last in both.
        first = len(before) == 4 or low.value(a[0]) in low.sequences
        low.emit(node, "flatten", [a[0]], numbers={"channels_first": int(first)})
    elif not renames(low, node, a[0], after):
        low.refuse(node, f"reshapes {before} to {after}, batch included")


@handles("aten.pad.default", "aten.constant_pad_nd.default")
def _pad(low: "Lowering", node: fx.Node, a: list[Any]) -> None:
    x, amounts = a[0], [int(item) for item in a[1]]
    named = "constant" if node.target == "aten.constant_pad_nd.default" else a[2]
    filler = a[2] if isinstance(a[2], int | float) else (a[3] if len(a) > 3 else 0)
    if isinstance(named, str) and named != "constant":
        low.refuse(node, f"pads in mode {named}")
    if filler not in (None, 0, 0.0) or any(item < 0 for item in amounts):
        low.refuse(node, "pads with other values than zero, or crops")
    by_axis = {
        len(low.shape(x)) - 1 - i // 2: amounts[i : i + 2] for i in range(0, len(amounts), 2)
    }
    channel, rows, columns = (by_axis.pop(axis, [0, 0]) for axis in (1, 2, 3))
    if len(low.shape(x)) != 4 or any(any(item) for item in by_axis.values()):
        low.refuse(node, "pads something other than images")
    if rows[0] != rows[1] or columns[0] != columns[1]:
        low.refuse(node, "pads one side more than the other")
    if not any(rows + columns):
        low.emit(node, "pad_channels", [x], numbers={"before": channel[0], "after": channel[1]})
        return
    if any(channel):
        low.refuse(node, "pads both pixels and channels")
    # A sum over windows of a single pixel, of which there are none beyond the border.
    numbers = window([1, 1], 1, [rows[0], columns[0]], 1) | {"divisor": 1}
    low.emit(node, "avg_pool", [x], numbers=numbers)


@handles("aten.slice.Tensor")
def _slice(low: "Lowering", node: fx.Node, a: list[Any]) -> None:
    x, axis, start, end, step = a
    shape = low.shape(x)
    # The batch that was traced has two samples, others have more.
    far = end is None or end > END or (end >= shape[axis] and axis != 0)
    whole = (start or 0) == 0 and far
    if whole and step == 1:
        low.alias[node.name] = low.value(x)
        return
    if len(shape) != 4 or axis not in (2, 3) or not whole:
        low.refuse(node, "slices in another way than every n-th row or column")
    stride = [step, 1] if axis == 2 else [1, step]
    low.emit(node, "subsample", [x], numbers={"stride": stride})


@handles("aten.cat.default")
def _cat(low: "Lowering", node: fx.Node, a: list[Any]) -> None:
    tensors, axis = a
    ranks = {len(low.shape(item)) for item in tensors if low.is_value(item)}
    if len(ranks) != 1 or not all(low.is_value(item) for item in tensors):
        low.refuse(node, "joins a constant, or tensors of different kinds")
    first, axis = low.value(tensors[0]), axis % ranks.pop()
    if len(low.shapes[first]) == 3 and axis != 0:
        first = low.in_layout(node, first, axis == 1)
    if axis != low.channel_axis(first):
        low.refuse(node, "joins tensors along another dimension than the channels")
    low.emit(node, "concat", [first, *tensors[1:]])
