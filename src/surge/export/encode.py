"""From graph to tensors and text: bits without gaps, the rest in fp32, fp16 or int8."""

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from surge.errors import ExportError
from surge.export.graph import Activation, Graph, Node
from surge.export.pixels import rounded
from surge.summary import Rest

Arrays = dict[str, NDArray[Any]]
LARGEST = {"kernel": 2**16, "stride": 2**16, "padding": 2**10, "dilation": 2**10}
"""What the engine takes of a window's numbers."""


def pack_bits(values: Tensor) -> NDArray[np.uint8]:
    """Return one bit per value, 1 for +1, the first value in the lowest bit of the first byte.

    >>> pack_bits(torch.tensor([1.0, -1.0, -1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0])).tolist()
    [249, 1]
    """
    positive = (values.reshape(-1) > 0).numpy()
    return np.packbits(positive, bitorder="little")


def bit_planes(values: Tensor, bits: int) -> Tensor:
    """Return the planes of odd whole numbers: plane j holds +-1, and the sum of 2^j planes is v.

    >>> bit_planes(torch.tensor([-3.0, -1.0, 1.0, 3.0]), 2).tolist()
    [[-1.0, 1.0, -1.0, 1.0], [-1.0, -1.0, 1.0, 1.0]]
    """
    level = ((values + 2**bits - 1) / 2).to(torch.int64)
    return torch.stack([2.0 * (level >> plane & 1) - 1 for plane in range(bits)])


def filters_last(weight: Tensor) -> Tensor:
    """Put the channels of a convolution's weight last: [out, height, width, in / groups]."""
    return weight.permute(0, 2, 3, 1).contiguous()


class Encoder:
    """Collects the tensors of a file; equal ones under the same name are stored once."""

    def __init__(self, rest: Rest) -> None:
        self.rest = rest
        self.arrays: Arrays = {}
        self.places: dict[int, str] = {}
        """Names of real weights by where they lie: tied ones are stored once."""

    def add(self, name: str, array: NDArray[Any]) -> str:
        """Store a tensor and return its name, made unique if another one has it."""
        unique, number = name, 1
        while unique in self.arrays:
            known = self.arrays[unique]
            if known.dtype == array.dtype and np.array_equal(known, array):
                return unique
            number += 1
            unique = f"{name}.{number}"
        self.arrays[unique] = np.ascontiguousarray(array)
        return unique

    def vector(self, name: str, tensor: Tensor, *, infinite: bool = False) -> str | float:
        """Store one value per channel, always in fp32; a number of the program stays a number."""
        if not infinite and not bool(torch.isfinite(tensor).all()):
            raise ExportError(f'pack: "{name}" holds values that are not finite.')
        if tensor.dim() == 0:
            return float(tensor)
        return self.add(name, tensor.detach().numpy().astype(np.float32))

    def node(self, node: Node) -> dict[str, Any]:
        """Return a node as it stands in the file, its tensors stored."""
        name = node.module or node.output
        for key, most in LARGEST.items():
            if (given := max(node.numbers.get(key, (0,)))) > most:
                raise ExportError(f'pack: "{name}" has a {key} of {given}; the most is {most}.')
        entry: dict[str, Any] = {
            "op": node.op,
            "name": name,
            "inputs": node.inputs,
            "output": node.output,
            **node.numbers,
        }
        if node.op == "binary_conv2d":
            assert node.weight is not None
            entry["channels"] = node.weight.shape[0]
            bits = pack_bits(filters_last(node.weight))
            entry["weight"] = self.add(f"{name}.weight", bits)
        elif node.op in ("embedding", "add_rows", "prepend_rows"):
            self._table(entry, name, node)
        elif node.op == "conv2d" and node.weight_bits:
            self._few_bit_weight(entry, name, node)
        elif node.op == "conv2d":
            self._real_weight(entry, name, node)
        vectors = {
            "row_scale": node.row_scale,
            "shift": node.shift,
            "offset": node.offset,
            "scale": node.scale,
            "bias": node.bias,
        }
        for key, tensor in vectors.items():
            if tensor is not None:
                entry[key] = self.vector(f"{name}.{key}", tensor)
        if node.residual is not None:
            entry["residual"] = node.residual
        if node.activation is not None:
            entry["activation"] = self._activation(name, node.activation)
        return entry

    def _few_bit_weight(self, entry: dict[str, Any], name: str, node: Node) -> None:
        assert node.weight is not None
        planes = bit_planes(filters_last(node.weight), node.weight_bits)
        entry["channels"] = node.weight.shape[0]
        entry["weight"] = self.add(f"{name}.weight", pack_bits(planes))
        if node.weight_bits > 1:
            entry["weight_bits"] = node.weight_bits

    def _table(self, entry: dict[str, Any], name: str, node: Node) -> None:
        assert node.weight is not None
        entry["rows"] = node.weight.shape[0]
        if node.op == "embedding":
            entry["channels"] = node.weight.shape[1]
        if node.weight_bits:
            entry["weight"] = self.add(f"{name}.weight", pack_bits(node.weight))
            return
        numbers, step = self._rest(name, node.weight[:, :, None, None])
        entry["weight"] = self._tied(f"{name}.weight", node.weight, numbers)
        node.row_scale = None if step is None else step.float()

    def _real_weight(self, entry: dict[str, Any], name: str, node: Node) -> None:
        assert node.weight is not None
        weight = filters_last(node.weight)
        entry["channels"] = weight.shape[0]
        if "pixels" in node.numbers:
            entry["weight"] = self.add(f"{name}.weight", weight.to(torch.int8).numpy())
            return
        numbers, step = self._rest(name, weight)
        if step is not None:
            # The steps become part of the scale, which a BatchNorm brings anyway.
            node.scale = (step if node.scale is None else step * node.scale.double()).float()
        entry["weight"] = self._tied(f"{name}.weight", node.weight, numbers)

    def _tied(self, name: str, weight: Tensor, numbers: NDArray[Any]) -> str:
        """Store a real weight, or return the name of the same one that another layer has."""
        known = self.places.setdefault(weight.data_ptr(), name)
        if known in self.arrays:
            stored = self.arrays[known]
            if stored.dtype == numbers.dtype and np.array_equal(stored.ravel(), numbers.ravel()):
                return known
        return self.add(name, numbers)

    def _rest(self, name: str, weight: Tensor) -> tuple[NDArray[Any], Tensor | None]:
        """Return real weights in the type they are stored in, and the steps of int8."""
        if not bool(torch.isfinite(weight).all()):
            raise ExportError(f'pack: the weight of "{name}" holds values that are not finite.')
        if self.rest == "int8":
            whole, step = rounded(weight)
            return whole.to(torch.int8).numpy(), step
        if self.rest == "fp16" and float(weight.abs().max()) > torch.finfo(torch.float16).max:
            raise ExportError(
                f'pack: the weight of "{name}" does not fit into fp16; use rest="fp32".'
            )
        return weight.numpy().astype(np.float16 if self.rest == "fp16" else np.float32), None

    def _activation(self, name: str, activation: Activation) -> dict[str, Any]:
        open_ended = activation.kind == "between"
        stored = {
            key: self.vector(f"{name}.{key}", tensor, infinite=open_ended)
            for key, tensor in activation.vectors.items()
        }
        return {"kind": activation.kind, **activation.numbers, **stored}


def encode(graph: Graph, rest: Rest) -> tuple[dict[str, Any], Arrays]:
    """Return the graph as it is written to the file, and its tensors."""
    encoder = Encoder(rest)
    names: dict[str, str] = {graph.input: "input"}
    for number, node in enumerate(graph):
        names[node.output] = f"v{number}"
    for node in graph:
        node.inputs = [names[value] for value in node.inputs]
        node.output = names[node.output]
        node.residual = None if node.residual is None else names[node.residual]
    text = {
        "input": {"value": "input", "shape": graph.input_shape},
        "output": {"value": names[graph.output], "shape": graph.output_shape},
        "nodes": [encoder.node(node) for node in graph],
    }
    return text, encoder.arrays
