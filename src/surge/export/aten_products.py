"""Convolutions and linear layers, with real weights and with weights of few bits."""

from typing import Any

import torch
from torch import Tensor, fx

from surge.export.aten import handles, pair, window
from surge.export.builder import Builder
from surge.export.graph import Activation, times
from surge.export.trace import sign_level
from surge.layers import BinaryLayer
from surge.method import Geometry

REAL = 32
"""Bits of a value that is not quantised."""


@handles("aten.conv2d.default", "aten.conv2d.padding", "aten.conv1d.default", "aten.conv1d.padding")
def _convolution(low: Builder, node: fx.Node, a: list[Any]) -> None:
    x, weight, bias, stride, padding, dilation, groups = a
    _check_real(low, node, x)
    flat = "conv1d" in str(node.target)
    if low.is_value(weight) or len(low.shape(x)) != (3 if flat else 4):
        low.refuse(node, "has a weight that is not a constant, or an input without a batch")
    kernel: Tensor = low.floats(weight)
    if isinstance(padding, str):
        total = [d * (k - 1) for d, k in zip(pair(dilation), kernel.shape[2:], strict=False)]
        if padding == "same" and any(t % 2 for t in total):
            low.refuse(node, "pads one side more than the other")
        padding = [t // 2 for t in total] if padding == "same" else [0] * len(total)
    source = low.as_sequence(node, x) if flat else low.value(x)
    numbers = window(kernel.shape[2:], stride, padding, dilation, flat=flat)
    if flat:
        kernel = kernel[:, :, None]
    box = not isinstance(weight, fx.Node) or weight.op == "call_function"
    if box and kernel.shape[:2] == (1, 1) and bool((kernel == 1).all()) and bias is None:
        # A box of ones is a sum over the window: XNOR-Net's map, which stores no weight.
        low.emit(node, "avg_pool", [source], numbers=numbers | {"divisor": 1})
        return
    numbers["groups"] = int(groups)
    low.emit(node, "conv2d", [source], numbers=numbers, weight=kernel, bias=low.floats(bias))


@handles("aten.linear.default")
def _linear(low: Builder, node: fx.Node, a: list[Any]) -> None:
    x, weight, bias = a
    _check_real(low, node, x)
    if low.is_value(weight) or low.is_image(x):
        low.refuse(node, "multiplies two computed tensors, or acts on the columns of images")
    kernel: Tensor = low.floats(weight)[:, :, None, None]
    source = low.as_rows(node, x)
    low.emit(node, "conv2d", [source], numbers=_pointwise(), weight=kernel, bias=low.floats(bias))


def _check_real(low: Builder, node: fx.Node, x: Any) -> None:
    # Torch would notice when it runs, but not when it traces.
    if low.is_value(x) and not x.meta["val"].is_floating_point():
        low.refuse(node, "multiplies whole numbers; give an example_input of real ones")


def _pointwise() -> dict[str, Any]:
    return window([1, 1], 1, 0, 1) | {"groups": 1}


def _layer_geometry(
    low: Builder, node: fx.Node, x: Any, shape: Geometry
) -> tuple[str, dict[str, Any], tuple[int, ...]]:
    """Return the input of a layer in the layout it needs, its window, and its kernel's shape."""
    _check_real(low, node, x)
    if shape.kind == "linear":
        if low.is_image(x):
            low.refuse(node, "acts on the columns of images")
        return low.as_rows(node, x), _pointwise(), (1, 1)
    flat = len(shape.kernel_size) == 1
    if len(low.shape(x)) != len(shape.kernel_size) + 2:
        low.refuse(node, "has an input without a batch")
    numbers = window(shape.kernel_size, shape.stride, shape.padding, shape.dilation, flat=flat)
    source = low.as_sequence(node, x) if flat else low.value(x)
    return source, numbers | {"groups": shape.groups}, tuple(numbers["kernel"])


@handles("surge_export.binary_product.default")
def _binary(low: Builder, node: fx.Node, a: list[Any]) -> None:
    z, index, _ = a
    name, layer = low.traced.layers[index]
    values, scale = (part.detach().float().cpu() for part in layer.packed_weight())
    level = sign_level(layer)
    assert level is not None
    scale = scale * level
    source, numbers, kernel = _layer_geometry(low, node, z, layer.geometry)
    weight = values.reshape(*values.shape[:2], *kernel)
    if not bool((weight.abs() == 1).all()):
        # Signs times other weights: a real convolution of +-1.
        signs = low.emit_inner(node, "affine", [source], activation=Activation("sign"))
        _few_bit(low, node, signs, numbers, weight, scale, layer)
    else:
        arithmetic = [] if bool((scale == 1).all()) else [times(scale)]
        low.emit(
            node,
            "binary_conv2d",
            [source],
            numbers=numbers,
            weight=weight,
            scale=scale,
            arithmetic=arithmetic,
        )
    low.nodes[-1].module = name


@handles("surge_export.real_product.default")
def _real(low: Builder, node: fx.Node, a: list[Any]) -> None:
    x, index, _ = a
    name, layer = low.traced.layers[index]
    values, scale = (part.detach().float().cpu() for part in layer.packed_weight())
    source, numbers, kernel = _layer_geometry(low, node, x, layer.geometry)
    _few_bit(low, node, source, numbers, values.reshape(*values.shape[:2], *kernel), scale, layer)
    low.nodes[-1].module = name


def _few_bit(
    low: Builder,
    node: fx.Node,
    source: str,
    numbers: dict[str, Any],
    weight: Tensor,
    scale: Tensor,
    layer: BinaryLayer,
) -> None:
    """Emit a convolution whose weights are odd whole numbers, two values per filter, or real."""
    bits = layer.method.bits[0]
    if bits == REAL:
        real = weight * scale.view(-1, 1, 1, 1)
        low.emit(node, "conv2d", [source], numbers=numbers, weight=real)
        return
    offset = None
    if not bool((weight.remainder(2) == 1).all()):
        # Two values per filter: their middle is an offset, half their distance a scale.
        flat = weight.flatten(1).double()
        high, least = flat.amax(1), flat.amin(1)
        middle, half = (high + least) / 2, (high - least) / 2
        half = torch.where(half > 0, half, torch.ones_like(half))
        signs = torch.where(flat > middle[:, None], 1.0, -1.0)
        same = torch.where(flat > middle[:, None], high[:, None], least[:, None]) == flat
        if not bool(same.all()) or bits != 1:
            low.refuse(node, "has weights that are neither odd numbers nor two values per filter")
        offset, weight = (middle / half).float(), signs.float().view_as(weight)
        scale = (scale.double() * half).float()
    elif float(weight.abs().max()) >= 2**bits:
        low.refuse(node, f"has weights that do not fit into {bits} bits")
    low.emit(
        node,
        "conv2d",
        [source],
        numbers=numbers,
        weight=weight,
        weight_bits=bits,
        offset=offset,
        scale=scale,
    )
