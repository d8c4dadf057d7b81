"""A packed file as torch modules again: its binary network, and the float twin of its shape.

Other engines do not read packed files. To time one beside them, the graph in the file is rebuilt
from torch operators: once as it is, once with every binary convolution as a real one.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from safetensors.numpy import load
from torch import Tensor, nn

from surge.errors import ExportError
from surge.export.container import metadata_of
from surge.layers import BinaryConv2d
from surge.study.bench.workloads import Workload


def workload_of(path: Path) -> Workload:
    """Return the network of a packed file and its float twin.

    Raises:
        ExportError: the file has an operator that is not rebuilt here; the message names it.
    """
    content = path.read_bytes()
    graph, arrays = json.loads(metadata_of(content)["graph"]), load(content)
    generator = torch.Generator().manual_seed(0)
    example = torch.randn(1, *graph["input"]["shape"], generator=generator)
    binary, floating = (PackedNetwork(graph, arrays, real=real).eval() for real in (False, True))
    return Workload(path.stem, binary, floating, example, about=f"from {path.name}")


class PackedNetwork(nn.Module):
    """The graph of a packed file; ``real`` makes its binary convolutions real ones."""

    def __init__(self, graph: dict[str, Any], arrays: dict[str, Any], *, real: bool) -> None:
        super().__init__()
        self.source, self.result = graph["input"]["value"], graph["output"]["value"]
        self.nodes = graph["nodes"]
        self.output_shape = list(graph["output"]["shape"])
        tokens = len(graph["input"]["shape"]) == 2
        self.enter = _to_rows if tokens else (lambda x: x)
        self.leave = _from_rows if len(self.output_shape) == 2 else (lambda x: x)
        self.steps = nn.ModuleList(_step(node, arrays, real=real) for node in self.nodes)

    def forward(self, input: Tensor) -> Tensor:
        """Run the nodes in order."""
        values = {self.source: self.enter(input)}
        if values[self.source].dim() == 2:
            values[self.source] = values[self.source][:, :, None, None]
        for node, step in zip(self.nodes, self.steps, strict=True):
            names = node["inputs"] + ([node["residual"]] if "residual" in node else [])
            values[node["output"]] = step(*(values[name] for name in names))
        result = self.leave(values[self.result])
        return result.flatten(1) if len(self.output_shape) == 1 else result


def _to_rows(x: Tensor) -> Tensor:
    """Turn tokens ``[N, tokens, features]`` into an image of one row."""
    return x.transpose(1, 2).unsqueeze(2)


def _from_rows(x: Tensor) -> Tensor:
    return x.squeeze(2).transpose(1, 2)


class Plain(nn.Module):
    """A step without weights."""

    def __init__(self, function: Callable[..., Tensor]) -> None:
        super().__init__()
        self.function = function

    def forward(self, *inputs: Tensor) -> Tensor:
        """Compute it."""
        return self.function(*inputs)


class Epilogue(nn.Module):
    """Scale, bias, residual, activation, around an optional convolution."""

    def __init__(self, inner: nn.Module | None, node: dict[str, Any], vectors: Vectors) -> None:
        super().__init__()
        self.inner = inner
        self.scale, self.bias = vectors.get(node, "scale"), vectors.get(node, "bias")
        self.activation = vectors.activation(node.get("activation"))

    def forward(self, x: Tensor, residual: Tensor | None = None) -> Tensor:
        """Run the convolution, if there is one, and what follows it."""
        t = x if self.inner is None else self.inner(x)
        t = t if self.scale is None else t * self.scale
        t = t if self.bias is None else t + self.bias
        t = t if residual is None else t + residual
        return self.activation(t)


class Vectors:
    """The tensors of a file, looked up by what a node calls them."""

    def __init__(self, arrays: dict[str, Any], *, real: bool) -> None:
        self.arrays, self.real = arrays, real

    def get(self, owner: dict[str, Any], key: str) -> Tensor | None:
        """Return a vector, shaped to broadcast over ``[N, C, H, W]``; None where there is none."""
        if key not in owner:
            return None
        value = owner[key]
        array = self.arrays[value].astype(np.float32) if isinstance(value, str) else value
        return torch.tensor(array, dtype=torch.float32).reshape(1, -1, 1, 1)

    def needed(self, owner: dict[str, Any], key: str) -> Tensor:
        """Return a vector that must be there."""
        found = self.get(owner, key)
        assert found is not None
        return found

    def activation(self, entry: dict[str, Any] | None) -> Callable[[Tensor], Tensor]:
        """Return the function of an activation; a float twin has ReLU where signs are made."""
        if entry is None:
            return lambda t: t
        match entry["kind"]:
            case "relu":
                return F.relu
            case "clamp":
                low, high = float(entry["low"]), float(entry["high"])
                return lambda t: t.clamp(low, high)
            case "sign":
                return F.relu if self.real else _sign
            case "between":
                return self._between(entry)
            case "prelu":
                slope = self.needed(entry, "slope").reshape(-1)
                return lambda t: F.prelu(t, slope)
            case "rprelu":
                before, after = self.needed(entry, "shift_in"), self.needed(entry, "shift_out")
                slope = self.needed(entry, "slope").reshape(-1)
                return lambda t: F.prelu(t + before, slope) + after
            case kind:
                raise ExportError(f'the activation "{kind}" is not rebuilt.')

    def _between(self, entry: dict[str, Any]) -> Callable[[Tensor], Tensor]:
        """Return low <= t <= high as the sign of a line: a norm, as the network had before."""
        low, high = self.needed(entry, "low"), self.needed(entry, "high")
        largest = torch.finfo(torch.float32).max
        rising, falling = high >= largest, low <= -largest
        factor = torch.where(rising, 1.0, -1.0)
        offset = torch.where(rising, -low, high)
        constant = (rising & falling) | (low > high)
        factor = torch.where(constant, 0.0, factor)
        offset = torch.where(constant, torch.where(low < high, 1.0, -1.0), offset)
        return lambda t: t * factor + offset


def _sign(t: Tensor) -> Tensor:
    return torch.where(t >= 0, 1.0, -1.0)


def _ternary(x: Tensor, limit: Tensor) -> Tensor:
    return torch.where(x >= limit, 1.0, torch.where(x <= -limit, -1.0, 0.0))


PLAIN: dict[str, Callable[..., Tensor]] = {
    "absolute": torch.abs,
    "add": torch.add,
    "divide": torch.div,
    "multiply": torch.mul,
    "sigmoid": torch.sigmoid,
    "square_root": torch.sqrt,
    "subtract": torch.sub,
}
"""Operators without attributes."""


def _step(node: dict[str, Any], arrays: dict[str, Any], *, real: bool) -> nn.Module:
    """Return the module of one node; a float twin rounds nothing."""
    vectors = Vectors(arrays, real=real)
    match node["op"]:
        case "conv2d" | "binary_conv2d":
            return Epilogue(_convolution(node, vectors), node, vectors)
        case "affine":
            return Epilogue(None, node, vectors)
        case "max_pool":
            window = (node["kernel"], node["stride"], node["padding"], node["dilation"])
            return nn.MaxPool2d(*window, ceil_mode=bool(node.get("ceiling")))
        case "avg_pool":
            return Plain(_average(node))
        case "pad_channels":
            padding = (0, 0, 0, 0, node["before"], node["after"])
            return Plain(lambda x: F.pad(x, padding))
        case "pad":
            sides = tuple(node[key] for key in ("left", "right", "top", "bottom"))
            return Plain(lambda x: F.pad(x, sides))
        case "rows":
            count = int(node["count"])
            return Plain(lambda x: x.reshape(*x.shape[:2], count, -1))
        case "shuffle":
            groups = int(node["groups"])
            return Plain(lambda x: F.channel_shuffle(x, groups))
        case "subsample":
            down, right = _pair(node["stride"])
            return Plain(lambda x: x[:, :, ::down, ::right])
        case "flatten":
            first = bool(node["channels_first"])
            return Plain(lambda x: _flat(x if first else x.permute(0, 2, 3, 1)))
        case "concat":
            return Plain(lambda *x: torch.cat(x, dim=1))
        case "transpose":
            return Plain(lambda x: x.transpose(1, 3))
        case "channel_mean":
            return Plain(lambda x: x.mean(dim=1, keepdim=True))
        case "sample_mean":
            return Plain(lambda x: x.mean(dim=(1, 2, 3), keepdim=True))
        case "sample_variance":
            correction = int(node["correction"])
            return Plain(lambda x: x.var(dim=(1, 2, 3), correction=correction, keepdim=True))
        case "round":
            levels = float(node["levels"])
            return Plain(lambda x: x * levels if real else (x * levels).round())
        case "ternary":
            return Plain(lambda x, limit: x if real else _ternary(x, limit))
        case op if op in PLAIN:
            return Plain(PLAIN[op])
        case op:
            raise ExportError(f'the operator "{op}" is not rebuilt.')


def _pair(value: Any) -> tuple[int, int]:
    first, second = value if isinstance(value, list) else (value, value)
    return int(first), int(second)


def _flat(x: Tensor) -> Tensor:
    return x.flatten(1)[:, :, None, None]


def _average(node: dict[str, Any]) -> Callable[[Tensor], Tensor]:
    kernel, stride, padding, dilation = (
        _pair(node[key]) for key in ("kernel", "stride", "padding", "dilation")
    )
    divisor = node.get("divisor")
    if divisor is None:
        ceiling = bool(node.get("ceiling"))
        return lambda x: F.avg_pool2d(x, kernel, stride, padding, ceiling, count_include_pad=False)
    if dilation == (1, 1) and all(2 * p <= k for p, k in zip(padding, kernel, strict=True)):
        return lambda x: F.avg_pool2d(x, kernel, stride, padding, divisor_override=int(divisor))

    def box(x: Tensor) -> Tensor:
        ones = x.new_ones(x.shape[1], 1, *kernel)
        return F.conv2d(x, ones, None, stride, padding, dilation, x.shape[1]) / float(divisor)

    return box


def _weight(node: dict[str, Any], array: Any) -> Tensor:
    """Return the weights of a convolution as real numbers, in torch's order."""
    channels, kernel = int(node["channels"]), _pair(node["kernel"])
    if array.dtype == np.uint8:
        planes = int(node.get("weight_bits", 1))
        bits = np.unpackbits(array, bitorder="little")
        bits = bits[: bits.size - bits.size % (planes * channels * math.prod(kernel))]
        values = np.tensordot(2.0 ** np.arange(planes), 2.0 * bits.reshape(planes, -1) - 1, axes=1)
    else:
        values = array
    weight = torch.from_numpy(values.astype(np.float32).reshape(channels, *kernel, -1))
    return weight.permute(0, 3, 1, 2)


def _convolution(node: dict[str, Any], vectors: Vectors) -> nn.Module:
    weight = _weight(node, vectors.arrays[node["weight"]])
    offset = vectors.get(node, "offset")
    if offset is not None:
        weight = weight + offset.view(-1, 1, 1, 1)
    channels, inputs = weight.shape[:2]
    kernel, groups = _pair(node["kernel"]), int(node["groups"])
    bits = node["op"] == "binary_conv2d"
    options: dict[str, Any] = {
        "stride": _pair(node["stride"]),
        "padding": _pair(node["padding"]),
        "dilation": _pair(node["dilation"]),
        "groups": groups,
        "bias": False,
    }
    made: nn.Conv2d = (
        BinaryConv2d(inputs * groups, channels, kernel, method="bnn", **options)
        if bits and not vectors.real
        else nn.Conv2d(inputs * groups, channels, kernel, **options)
    )
    if "pixels" in node:
        return _on_pixels(node["pixels"], made, weight, real=vectors.real)
    made.weight = nn.Parameter(weight.contiguous(), requires_grad=False)
    shift = vectors.get(node, "shift")
    if shift is None:
        return made
    return nn.Sequential(Plain(lambda x: x + shift), made)


def _on_pixels(pixels: dict[str, Any], made: nn.Conv2d, weight: Tensor, *, real: bool) -> nn.Module:
    """Return a convolution that takes the bytes of pixels; the float twin takes real numbers."""
    scale, bias, fill = (
        torch.tensor(pixels[key], dtype=torch.float32).reshape(1, -1, 1, 1)
        for key in ("scale", "bias", "fill")
    )
    # Zeros beyond the border stand for what is taken away before, and comes back as a bias.
    border = bias if real else fill
    made.weight = nn.Parameter((weight * scale if real else weight).contiguous(), False)
    made.bias = nn.Parameter((weight * border).sum(dim=(1, 2, 3)), False)
    if real:
        return made
    return nn.Sequential(Plain(lambda x: (x * scale + bias).round().clamp(0, 255) - fill), made)
