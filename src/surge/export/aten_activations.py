"""The torch operators that act on every value by itself."""

import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, fx

from surge.export.aten import handles
from surge.export.builder import Builder
from surge.export.graph import Activation

ACTIVATIONS = (
    "aten.relu.default",
    "aten.hardtanh.default",
    "aten.clamp.default",
    "aten.relu6.default",
    "aten.prelu.default",
    "aten.leaky_relu.default",
    "aten.tanh.default",
    "aten.sigmoid.default",
    "aten.silu.default",
    "aten.gelu.default",
    "aten.hardsigmoid.default",
    "aten.hardswish.default",
)
"""All of these, but for those that change their input in place."""


@handles("aten.relu.default", "aten.relu_.default")
def _relu(low: Builder, node: fx.Node, a: list[Any]) -> None:
    low.emit(node, "affine", [a[0]], activation=Activation("relu"), arithmetic=[F.relu])


@handles(
    "aten.hardtanh.default",
    "aten.hardtanh_.default",
    "aten.clamp.default",
    "aten.clamp_.default",
    "aten.relu6.default",
)
def _clamp(low: Builder, node: fx.Node, a: list[Any]) -> None:
    lower, upper = (0, 6) if "relu6" in str(node.target) else a[1:3]
    # A file has no infinities, and no finite number lies beyond these.
    largest = torch.finfo(torch.float32).max
    limits = {
        "low": -largest if lower is None else max(float(lower), -largest),
        "high": largest if upper is None else min(float(upper), largest),
    }
    limits["low"] = min(limits.values())  # torch takes the upper one where they are crossed

    def arithmetic(t: Tensor) -> Tensor:
        return t.clamp(limits["low"], limits["high"])

    low.emit(
        node, "affine", [a[0]], activation=Activation("clamp", limits), arithmetic=[arithmetic]
    )


@handles("aten.prelu.default", "aten.leaky_relu.default")
def _prelu(low: Builder, node: fx.Node, a: list[Any]) -> None:
    constant = low.constant(a[1])
    slope = torch.as_tensor(constant, dtype=torch.float32).detach().cpu()
    slope = slope if isinstance(constant, int | float) else slope.reshape(-1)
    sequence = len(low.shape(a[0])) == 3 and slope.numel() > 1
    source = low.as_sequence(node, a[0]) if sequence else low.value(a[0])
    activation = Activation("prelu", vectors={"slope": slope})

    def arithmetic(t: Tensor) -> Tensor:
        return F.prelu(t, slope.reshape(-1))

    low.emit(node, "affine", [source], activation=activation, arithmetic=[arithmetic])


@handles("aten.tanh.default", "aten.tanh_.default")
def _tanh(low: Builder, node: fx.Node, a: list[Any]) -> None:
    low.emit(node, "tanh", [a[0]])


@handles("aten.sigmoid.default", "aten.sigmoid_.default")
def _sigmoid(low: Builder, node: fx.Node, a: list[Any]) -> None:
    low.emit(node, "sigmoid", [a[0]])


@handles("aten.silu.default", "aten.silu_.default")
def _silu(low: Builder, node: fx.Node, a: list[Any]) -> None:
    x = low.value(a[0])
    low.emit(node, "multiply", [a[0], low.emit_inner(node, "sigmoid", [x])])


@handles("aten.gelu.default", "aten.gelu_.default")
def _gelu(low: Builder, node: fx.Node, a: list[Any]) -> None:
    if len(a) < 2 or a[1] == "none":
        low.emit(node, "gelu", [a[0]])
        return
    # x / 2 (1 + tanh(x (b + c x^2)))
    x = low.value(a[0])
    slope = math.sqrt(2 / math.pi)
    square = low.emit_inner(node, "multiply", [x, x])
    factor = _line(low, node, square, 0.044715 * slope, slope)
    tanh = low.emit_inner(node, "tanh", [low.emit_inner(node, "multiply", [x, factor])])
    low.emit(node, "multiply", [a[0], _line(low, node, tanh, 0.5, 0.5)])


@handles("aten.hardsigmoid.default", "aten.hardsigmoid_.default")
def _hardsigmoid(low: Builder, node: fx.Node, a: list[Any]) -> None:
    ramp = _ramp(low, node, low.value(a[0]))
    low.emit(node, "affine", [ramp], scale=torch.tensor(1 / 6))


@handles("aten.hardswish.default", "aten.hardswish_.default")
def _hardswish(low: Builder, node: fx.Node, a: list[Any]) -> None:
    x = low.value(a[0])
    product = low.emit_inner(node, "multiply", [x, _ramp(low, node, x)])
    low.emit(node, "affine", [product], scale=torch.tensor(1 / 6))


def _ramp(low: Builder, node: fx.Node, x: str) -> str:
    """Return x + 3 between 0 and 6."""
    limits = Activation("clamp", {"low": 0.0, "high": 6.0})
    return low.emit_inner(node, "affine", [x], bias=torch.tensor(3.0), activation=limits)


def _line(low: Builder, node: fx.Node, x: str, slope: float, start: float) -> str:
    return low.emit_inner(node, "affine", [x], scale=torch.tensor(slope), bias=torch.tensor(start))


@handles("aten.abs.default")
def _abs(low: Builder, node: fx.Node, a: list[Any]) -> None:
    low.emit(node, "absolute", [a[0]])
