"""One small function per torch operator that a packed graph can express."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, fx

from surge.export.graph import Activation

if TYPE_CHECKING:
    from surge.export.lower import Lowering

Handler = Callable[["Lowering", fx.Node, list[Any]], Any]
HANDLERS: dict[str, Handler] = {}


def handles(*targets: str) -> Callable[[Handler], Handler]:
    """Register a function for torch operators."""

    def register(function: Handler) -> Handler:
        HANDLERS.update(dict.fromkeys(targets, function))
        return function

    return register


def pair(value: Any) -> list[int]:
    """Return two whole numbers, however torch abbreviates them."""
    numbers = [int(item) for item in value] if isinstance(value, list | tuple) else [int(value)]
    return numbers * 2 if len(numbers) == 1 else numbers


@handles("aten.conv2d.default", "aten.conv2d.padding")
def _conv2d(low: "Lowering", node: fx.Node, a: list[Any]) -> None:
    x, weight, bias, stride, padding, dilation, groups = a
    if low.is_value(weight) or len(low.shape(x)) != 4:
        low.refuse(node, "has a weight that is not a constant, or an input without a batch")
    kernel: Tensor = low.constant(weight).detach().float().cpu()
    if isinstance(padding, str):
        total = [d * (k - 1) for d, k in zip(pair(dilation), kernel.shape[2:], strict=True)]
        if padding == "same" and any(t % 2 for t in total):
            low.refuse(node, "pads one side more than the other")
        padding = [t // 2 for t in total] if padding == "same" else [0, 0]
    numbers = _window(kernel.shape[2:], stride, padding, dilation) | {"groups": int(groups)}
    box = not isinstance(weight, fx.Node) or weight.op == "call_function"
    if box and kernel.shape[:2] == (1, 1) and bool((kernel == 1).all()) and bias is None:
        # A box of ones is a sum over the window: XNOR-Net's map, which stores no weight.
        numbers |= {"divisor": 1, "groups": None}
        low.emit(node, "avg_pool", [x], numbers={k: v for k, v in numbers.items() if v is not None})
        return
    vector = None if bias is None else low.constant(bias).detach().float().cpu()
    low.emit(node, "conv2d", [x], numbers=numbers, weight=kernel, bias=vector)


def _window(kernel: Any, stride: Any, padding: Any, dilation: Any) -> dict[str, Any]:
    return {
        "kernel": pair(list(kernel)),
        "stride": pair(stride),
        "padding": pair(padding),
        "dilation": pair(dilation),
    }


@handles("aten.linear.default")
def _linear(low: "Lowering", node: fx.Node, a: list[Any]) -> None:
    x, weight, bias = a
    if low.is_value(weight) or len(low.shape(x)) == 4:
        low.refuse(node, "multiplies two computed tensors, or acts on the columns of images")
    kernel: Tensor = low.constant(weight).detach().float().cpu()[:, :, None, None]
    vector = None if bias is None else low.constant(bias).detach().float().cpu()
    low.emit(node, "conv2d", [x], numbers=_pointwise(), weight=kernel, bias=vector)


def _pointwise() -> dict[str, Any]:
    return _window([1, 1], 1, 0, 1) | {"groups": 1}


@handles("surge_export.binary_product.default")
def _binary(low: "Lowering", node: fx.Node, a: list[Any]) -> None:
    z, index, _ = a
    name, layer = low.traced.layers[index]
    values, scale = layer.packed_weight()
    shape = layer.geometry
    if shape.kind == "linear":
        if len(low.shape(z)) == 4:
            low.refuse(node, "acts on the columns of images")
        numbers, values = _pointwise(), values[:, :, None, None]
    else:
        if len(low.shape(z)) != 4:
            low.refuse(node, "has an input without a batch")
        numbers = _window(shape.kernel_size, shape.stride, shape.padding, shape.dilation)
        numbers["groups"] = shape.groups
    low.emit(
        node,
        "binary_conv2d",
        [z],
        numbers=numbers,
        weight=values.detach().cpu(),
        scale=scale.detach().float().cpu(),
    )
    low.nodes[-1].module = name


@handles("aten.batch_norm.default")
def _batch_norm(low: "Lowering", node: fx.Node, a: list[Any]) -> None:
    x, weight, bias, mean, variance, training, _, eps, _ = a
    if training or mean is None:
        low.refuse(node, "uses the statistics of the batch; the packed format needs running ones")
    if len(low.shape(x)) == 3:
        low.refuse(node, "normalises sequences, which have no layout in the packed format")
    centre, spread = low.constant(mean).double(), low.constant(variance).double()
    gamma = torch.ones_like(centre) if weight is None else low.constant(weight).double()
    beta = torch.zeros_like(centre) if bias is None else low.constant(bias).double()
    scale = gamma / (spread + eps).sqrt()
    low.emit(
        node,
        "affine",
        [x],
        scale=scale.detach().float().cpu(),
        bias=(beta - centre * scale).detach().float().cpu(),
    )


@handles("aten.add.Tensor", "aten.add_.Tensor", "aten.sub.Tensor")
def _add(low: "Lowering", node: fx.Node, a: list[Any]) -> None:
    left, right, alpha = a
    sign = -1 if "sub" in str(node.target) else 1
    if low.is_value(left) and low.is_value(right):
        if sign * alpha != 1 or low.shape(left) != low.shape(right):
            low.refuse(node, "combines two tensors in a way other than their plain sum")
        low.emit(node, "affine", [left], residual=low.value(right))
    elif low.is_value(left):
        addend = torch.as_tensor(low.constant(right)) * (sign * alpha)
        low.emit(node, "affine", [left], bias=low.vector(node, addend, left))
    else:
        parts = {} if sign * alpha == 1 else {"scale": torch.tensor([float(sign * alpha)])}
        low.emit(node, "affine", [right], bias=low.vector(node, low.constant(left), right), **parts)


@handles("aten.mul.Tensor", "aten.div.Tensor")
def _multiply(low: "Lowering", node: fx.Node, a: list[Any]) -> None:
    left, right = a
    divides = "div" in str(node.target)
    if low.is_value(left) and low.is_value(right):
        wide, narrow = low.shape(left), low.shape(right)
        if divides or len(wide) != len(narrow):
            low.refuse(node, "divides two computed tensors, or multiplies different ranks")
        low.emit(node, "multiply", [left, right])
        return
    if divides and not low.is_value(left):
        low.refuse(node, "divides by a computed tensor")
    value, factor = (left, right) if low.is_value(left) else (right, left)
    constant = torch.as_tensor(low.constant(factor), dtype=torch.float32)
    previous = low.nodes[-1] if low.nodes else None
    if (
        divides
        and constant.numel() == 1
        and previous is not None
        and previous.output == low.value(value)
        and previous.numbers.get("divisor") == 1
    ):
        previous.numbers["divisor"] = int(constant)
        low.alias[node.name] = previous.output
        return
    scale = low.vector(node, 1 / constant if divides else constant, value)
    low.emit(node, "affine", [value], scale=scale)


@handles("aten.relu.default", "aten.relu_.default")
def _relu(low: "Lowering", node: fx.Node, a: list[Any]) -> None:
    low.emit(node, "affine", [a[0]], activation=Activation("relu"))


@handles(
    "aten.hardtanh.default",
    "aten.hardtanh_.default",
    "aten.clamp.default",
    "aten.clamp_.default",
    "aten.relu6.default",
)
def _clamp(low: "Lowering", node: fx.Node, a: list[Any]) -> None:
    lower, upper = (0, 6) if "relu6" in str(node.target) else a[1:3]
    if lower is None or upper is None:
        low.refuse(node, "clamps on one side only")
    limits = {"low": float(lower), "high": float(upper)}
    low.emit(node, "affine", [a[0]], activation=Activation("clamp", limits))


@handles("aten.prelu.default", "aten.leaky_relu.default")
def _prelu(low: "Lowering", node: fx.Node, a: list[Any]) -> None:
    constant = low.constant(a[1])
    slope = torch.as_tensor(constant, dtype=torch.float32).detach().cpu().reshape(-1)
    if len(low.shape(a[0])) == 3 and slope.numel() > 1:
        low.refuse(node, "has slopes along the second of three dimensions")
    activation = Activation("prelu", vectors={"slope": slope})
    low.emit(node, "affine", [a[0]], activation=activation)


@handles(
    "surge.sign_identity.default",
    "surge.sign_clipped.default",
    "surge.sign_bireal.default",
    "surge.sign_ede.default",
    "surge.sign_swish.default",
)
def _sign(low: "Lowering", node: fx.Node, a: list[Any]) -> None:
    low.emit(node, "affine", [a[0]], activation=Activation("sign"))
