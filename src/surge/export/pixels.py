"""The first convolution in whole numbers: pixels are bytes, and int8 weights take them as such.

A stored pixel p becomes the input ``x = (p / maximum - mean) / std``. Turned around, every input
that comes from an image *is* a whole number from 0 to 255, so nothing is lost by going back::

    sum w x = sum v (p - m),   v = w / (std maximum),   m = mean maximum

with v rounded to int8, one step per filter. Beyond the border x = 0 is the pixel m, rounded.
"""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from surge.export.graph import Graph

BYTE = 255


def fold_pixels(graph: Graph, preprocessing: Mapping[str, Any]) -> None:
    """Let convolutions of the network's input take bytes, in place; ``weight`` becomes v."""
    maximum = float(preprocessing["maximum"])
    # Pixels up to 1 are no whole numbers.
    if len(graph.input_shape) != 3 or not (1 < maximum <= BYTE and maximum.is_integer()):
        return
    mean, std = (torch.tensor(preprocessing[key], dtype=torch.float64) for key in ("mean", "std"))
    if not bool(((mean * maximum >= 0) & (mean * maximum <= BYTE)).all()):
        return  # beyond the border there would have to be a pixel that no byte is
    for node in graph:
        fits = node.op == "conv2d" and node.inputs == [graph.input] and not node.weight_bits
        if not fits or node.numbers["groups"] != 1 or node.weight is None:
            continue
        factor = (std * maximum).view(1, -1, 1, 1)
        weight, step = rounded(node.weight.double() / factor)
        centre = (weight * (mean * maximum).view(1, -1, 1, 1)).sum(dim=(1, 2, 3)) * step
        scale = torch.ones(()) if node.scale is None else node.scale
        bias = torch.zeros(()) if node.bias is None else node.bias
        node.weight = weight.float()
        node.scale = (step * scale.double()).float()
        node.bias = (bias.double() - centre * scale.double()).float()
        node.numbers["pixels"] = {
            "scale": (std * maximum).tolist(),
            "bias": (mean * maximum).tolist(),
            "fill": (mean * maximum).round().to(torch.int64).tolist(),
        }


def rounded(weight: Tensor) -> tuple[Tensor, Tensor]:
    """Return whole numbers from -127 to 127 and one step per filter."""
    largest = weight.abs().amax(dim=(1, 2, 3)).double()
    step = torch.where(largest > 0, largest / 127, torch.ones_like(largest))
    return (weight.double() / step.view(-1, 1, 1, 1)).round(), step
