"""to_openvino: a trained model with its convolutions as OpenVINO's 1-bit ``BinaryConvolution``.

What that operator wants, measured against torch: inputs of {0, 1} that stand for -1 and +1 (with
-1 and +1 themselves it returns nonsense without a word), weight bits with the first weight in the
lowest bit of a byte, input channels in multiples of 8 (others are wrong without a word, too), and
``pad_value`` 0 for padding with real zeros.
"""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from surge.errors import MissingDependencyError
from surge.export.deploy import Deployed, prepared, target_path
from surge.export.ends import Example
from surge.export.onnx import checked_difference, onnx_model, onnx_packages

JUST_BELOW_ZERO = -float(np.finfo(np.float32).tiny)
"""The threshold: FakeQuantize gives the lower value *at* it, and sign(0) is +1."""


@dataclass(frozen=True)
class OpenVinoExport:
    """What was written; print it."""

    path: Path
    file_bytes: int
    """Size of the .xml and the .bin together."""
    binary: tuple[str, ...]
    """Layers that are 1-bit convolutions."""
    floats: Mapping[str, str]
    """Binary layers that stayed float convolutions of +-1, each with the reason."""
    difference: float
    """Largest difference between OpenVINO's and torch's output for the example."""

    def __str__(self) -> str:
        """Return a few lines."""
        lines = [
            f"{self.path} and .bin: {self.file_bytes:,} bytes, {len(self.binary)} 1-bit "
            f"convolutions; OpenVINO differs from torch by at most {self.difference:.1e} on the "
            "example."
        ]
        lines += [f"float: {name} ({reason})" for name, reason in self.floats.items()]
        return "\n".join(lines)


def to_openvino(model: nn.Module, example: Example, path: str | os.PathLike[str]) -> OpenVinoExport:
    """Write a model as OpenVINO IR, 1 bit per weight where OpenVINO can, and compare with torch.

    The model is evaluated as in eval mode and left as it is. OpenVINO's 1-bit kernel wants fixed
    sizes: the file has the batch of the example, ``reshape`` of the read model gives another.
    Layers without a 1-bit form (linear, grouped or dilated ones, more bits) become float operators
    and are listed in the result.

    Args:
        model: A stripped model that takes one tensor and returns one, or ``logits`` beside others.
        example: One input with its batch, which fixes all sizes; a dict gives it by name.
        path: Where to write; ``.xml`` is added if it is not there, the weights go beside it.

    Raises:
        ExportError: the model cannot be exported, or OpenVINO's output is not torch's.
        MissingDependencyError: openvino, onnx or onnxscript is not installed.
    """
    ov = openvino_package("to_openvino")
    onnx_packages("to_openvino")
    network, value, wanted = prepared(model, example, "to_openvino")
    made, converted, left = openvino_model(network, value)
    compiled = ov.Core().compile_model(made, "CPU", {"INFERENCE_PRECISION_HINT": "f32"})
    difference = checked_difference(
        torch.from_numpy(np.array(compiled(value.numpy())[0])) - wanted,
        wanted,
        "to_openvino: OpenVINO",
        "Use to_onnx, or surge.pack for the 1-bit engine.",
    )
    target = target_path(path, ".xml")
    ov.save_model(made, target, compress_to_fp16=False)
    written = sum(place.stat().st_size for place in (target, target.with_suffix(".bin")))
    return OpenVinoExport(target, written, converted, left, difference)


def openvino_package(who: str) -> Any:
    """Return the openvino module, or raise with the install command."""
    try:
        import openvino
    except ImportError as error:
        raise MissingDependencyError(
            f"{who} needs openvino: pip install 'surge-bnn[onnx,openvino]'"
        ) from error
    return openvino


def _why_float(layer: Deployed) -> str:
    """Return why a layer has no 1-bit form in OpenVINO; empty where it has one."""
    shape = layer.geometry
    if not layer.exact:
        return f"{layer.method.describe()} is not +-1 times +-1"
    if shape.kind != "conv" or len(shape.kernel_size) != 2:
        return "only 2-d convolutions have a 1-bit kernel"
    if shape.groups != 1:
        return f"{shape.groups} groups"
    if any(d != 1 for d in shape.dilation):
        return f"dilation {shape.dilation[0]}"
    if shape.in_features % 8:
        return f"{shape.in_features} input channels, not a multiple of 8"
    return ""


def openvino_model(
    network: nn.Module, example: Tensor
) -> tuple[Any, tuple[str, ...], dict[str, str]]:
    """Return a deployed network as an OpenVINO model, its 1-bit layers, and why others are not."""
    import openvino as ov

    layers = {name: m for name, m in network.named_modules() if isinstance(m, Deployed)}
    left = {name: reason for name, layer in layers.items() if (reason := _why_float(layer))}
    by_weight = {f"{name}.weight".lstrip("."): name for name in layers if name not in left}
    proto = onnx_model(network, example)
    # read_model, unlike convert_model, leaves the graph as the exporter wrote it.
    made = ov.Core().read_model(proto.SerializeToString())
    converted: list[str] = []
    for node in made.get_ordered_ops():
        if node.get_type_name() != "Convolution":
            continue
        signs, weight = (node.input_value(index).get_node() for index in (0, 1))
        name = by_weight.get(weight.get_friendly_name())
        if name is None or not _is_sign(signs):
            continue
        entering = signs.input_value(0).get_node().input_value(0)
        replacement = _binary_convolution(entering, weight.get_data(), layers[name])
        replacement.set_friendly_name(node.get_friendly_name())
        for reader in list(node.output(0).get_target_inputs()):
            reader.replace_source_output(replacement.output(0))
        if name not in converted:
            converted.append(name)
    # Its 1-bit kernel runs with fixed sizes only; another batch is one call of reshape away.
    made.reshape(list(example.shape))
    left |= {name: "not found in the graph" for name in by_weight.values() if name not in converted}
    return made, tuple(converted), left


def _is_sign(node: Any) -> bool:
    """Return whether a node is the sign that :class:`Deployed` writes: x >= 0 ? +1 : -1."""
    if node.get_type_name() != "Select":
        return False
    test, yes, no = (node.input_value(index).get_node() for index in range(3))
    return (
        test.get_type_name() == "GreaterEqual"
        and _number(test.input_value(1).get_node()) == 0
        and _number(yes) == 1
        and _number(no) == -1
    )


def _number(node: Any) -> float | None:
    if node.get_type_name() != "Constant" or node.get_data().size != 1:
        return None
    return float(node.get_data().reshape(-1)[0])


def _binary_convolution(entering: Any, weight: Any, layer: Deployed) -> Any:
    """Return sign(entering) convolved with the signs of a weight, times its magnitudes.

    Magnitudes other than 1 are those of a BatchNorm that the exporter folded into the weight.
    """
    import openvino as ov
    from openvino import opset1

    limit, low, high = (
        opset1.constant(number, dtype=np.float32) for number in (JUST_BELOW_ZERO, 0.0, 1.0)
    )
    signs = opset1.fake_quantize(entering, limit, limit, low, high, 2)
    # A tensor made from an array would only borrow its memory.
    bits = ov.Tensor(ov.Type.u1, ov.Shape(list(weight.shape)))
    bits.data[:] = np.packbits((weight > 0).reshape(-1), bitorder="little")
    shape = layer.geometry
    padding = list(shape.padding)
    product = opset1.binary_convolution(
        signs,
        ov.op.Constant(bits),
        list(shape.stride),
        padding,
        padding,
        list(shape.dilation),
        "xnor-popcount",
        0.0,
    )
    magnitude = np.abs(weight[:, :1, :1, :1]).reshape(1, -1, 1, 1)
    if (magnitude == 1).all():
        return product
    return opset1.multiply(product, opset1.constant(magnitude.astype(np.float32)))
