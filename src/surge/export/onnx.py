"""to_onnx: a trained model for onnxruntime and everything else that reads ONNX."""

import logging
import os
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from surge.errors import ExportError, MissingDependencyError
from surge.export.deploy import exported, prepared, target_path
from surge.export.ends import Example
from surge.files import write_whole

INPUT, OUTPUT = "input", "output"
"""Names of the two ends of every exported network."""
TOLERANCE = 0.1
"""Largest difference from torch, as a share of the output's norm, that is no mistake.

Rounding alone is a millionth; but where it turns one of the many values near zero, a sign flips and
every layer behind it sees that. A wrong kernel is wrong by more than the output itself.
"""


@dataclass(frozen=True)
class OnnxExport:
    """What was written; print it."""

    path: Path
    file_bytes: int
    operators: dict[str, int]
    """How often each operator occurs."""
    difference: float
    """Largest difference between onnxruntime's and torch's output for the example."""

    def __str__(self) -> str:
        """Return one line."""
        return (
            f"{self.path}: {self.file_bytes:,} bytes, {sum(self.operators.values())} operators of "
            f"plain ONNX; onnxruntime differs from torch by at most {self.difference:.1e} on the "
            "example."
        )


def to_onnx(model: nn.Module, example: Example, path: str | os.PathLike[str]) -> OnnxExport:
    """Write a model as ONNX with standard operators only, and compare it with torch.

    The model is evaluated as in eval mode and left as it is; any batch size runs. Binary weights
    are stored as fp32 numbers of +-1: ONNX has no bits. sign(0) = +1 is kept.

    Args:
        model: A stripped model that takes one tensor and returns one, or ``logits`` beside others.
        example: One input with a batch dimension, which fixes all other sizes; a dict gives it by
            name.
        path: Where to write; ``.onnx`` is added if it is not there.

    Raises:
        ExportError: the model cannot be traced, or an operator has no form in ONNX.
        MissingDependencyError: onnx, onnxscript or onnxruntime is not installed.
    """
    runtime = onnx_packages("to_onnx")
    network, value, wanted = prepared(model, example, "to_onnx")
    proto = onnx_model(network, value)
    target = target_path(path, ".onnx")
    content = proto.SerializeToString()
    session = runtime.InferenceSession(content, providers=["CPUExecutionProvider"])
    (found,) = session.run(None, {INPUT: value.numpy()})
    difference = checked_difference(
        torch.from_numpy(found) - wanted,
        wanted,
        "to_onnx: onnxruntime",
        "Sums of exactly 0, as an untrained network has them, may be rounded there.",
    )
    write_whole(target, content)
    counts: dict[str, int] = {}
    for node in proto.graph.node:
        counts[node.op_type] = counts.get(node.op_type, 0) + 1
    return OnnxExport(target, len(content), counts, difference)


def checked_difference(missing: Tensor, wanted: Tensor, who: str, advice: str) -> float:
    """Return the largest difference from torch; raise if it is more than rounding."""
    difference = float(missing.abs().max())
    if not float(missing.norm()) <= TOLERANCE * max(float(wanted.norm()), 1e-3):
        raise ExportError(
            f"{who}'s output differs from torch's by {difference:.2g}; nothing was written. "
            f"{advice}"
        )
    return difference


def onnx_model(network: nn.Module, example: Tensor) -> Any:
    """Return a deployed network as an ``onnx.ModelProto``."""
    with quiet():
        program = exported(network, example, "to_onnx")
        try:
            made: Any = torch.onnx.export(
                program, dynamo=True, verbose=False, input_names=[INPUT], output_names=[OUTPUT]
            )
        except Exception as error:  # the exporter wraps whatever went wrong
            cause = error.__cause__ or error
            first = " ".join(str(cause).strip().splitlines()[:1])
            raise ExportError(f"to_onnx: torch.onnx cannot write this model: {first}") from error
    proto = made.model_proto
    foreign = {node.domain for node in proto.graph.node} - {"", "ai.onnx"}
    if foreign or proto.functions:
        raise ExportError(f"to_onnx: the model needs operators outside ONNX: {sorted(foreign)}.")
    return proto


def onnx_packages(who: str) -> Any:
    """Return onnxruntime, if all that the export needs is installed."""
    try:
        import onnx  # noqa: F401
        import onnxruntime
        import onnxscript  # noqa: F401
    except ImportError as error:
        raise MissingDependencyError(
            f"{who} needs {error.name}: pip install 'surge-bnn[onnx]'"
        ) from error
    return onnxruntime


@contextmanager
def quiet() -> Iterator[None]:
    """Keep the exporter's own notes, which say nothing about the model, off the screen."""
    logger = logging.getLogger("torch.onnx")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", FutureWarning)
            warnings.simplefilter("ignore", DeprecationWarning)
            yield
    finally:
        logger.setLevel(level)
