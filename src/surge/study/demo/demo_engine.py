"""The end of the demo: the binary digits network as one file, in the engine, beside float."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from surge.data import ImageSet
from surge.errors import MissingDependencyError
from surge.export.packing import pack
from surge.pretrained import engine_accuracy, torch_accuracy
from surge.study.bench.starting import start_onnxruntime, start_surge
from surge.study.bench.timing import Timing, interleaved

SECONDS = 2.0
"""Time to measure for, all together."""


@dataclass(frozen=True)
class Served:
    """One way to run one of the two networks."""

    name: str
    file_bytes: int
    accuracy: float
    timing: Timing

    @property
    def micros(self) -> float:
        """Median time of one image."""
        return 1e6 * self.timing.median


@dataclass(frozen=True)
class Shipping:
    """The packed network beside its float twin; empty, with a reason, without the engine."""

    served: tuple[Served, ...] = ()
    path: Path | None = None
    torch_accuracy: float = 0.0
    """Of the binary network before it was packed."""
    images: int = 0
    missing: str = ""

    @property
    def packed(self) -> Served:
        """The packed network."""
        return self.served[-1]

    @property
    def floating(self) -> Served:
        """The fastest of the float networks."""
        return min(self.served[:-1], key=lambda served: served.micros)

    @property
    def smaller(self) -> float:
        """How many times as large the smallest float file is."""
        return min(served.file_bytes for served in self.served[:-1]) / self.packed.file_bytes


def ship(
    binary: nn.Module,
    floating: nn.Module,
    images: ImageSet,
    path: Path,
    *,
    seconds: float = SECONDS,
    **facts: Any,
) -> Shipping:
    """Pack the binary network, run it on all images, and time it beside the float one.

    One image per call, one thread each, in turns. onnxruntime is there if it is installed.

    Args:
        binary: The trained binary network.
        floating: The trained float network.
        images: Real test images.
        path: Where to write the packed file.
        seconds: Time to measure for.
        facts: What ``pack`` keeps with the model.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    packed = pack(binary, example := _one(images), path, rest="fp32", **facts)
    try:
        accuracy = engine_accuracy(path, images)
    except MissingDependencyError as error:
        return Shipping(path=path, missing=str(error))
    real = torch_accuracy(floating, images)
    weights = 4 * sum(value.numel() for value in floating.parameters())
    calls: dict[str, Callable[[], object]] = {"Float in torch": _in_torch(floating, example)}
    sizes = {"Float in torch": weights}
    written = _in_onnxruntime(floating, example, path.with_name("float.onnx"))
    if written is not None:
        calls["Float in onnxruntime"], sizes["Float in onnxruntime"] = written
    calls["Binary, packed"] = start_surge(str(path), example.numpy(), 1)
    sizes["Binary, packed"] = packed.file_bytes
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        timed = interleaved(calls, seconds=seconds)
    finally:
        torch.set_num_threads(threads)
    served = tuple(
        Served(name, sizes[name], accuracy if "packed" in name else real, timed[name])
        for name in calls
    )
    return Shipping(served, path, torch_accuracy(binary, images), len(images))


def _one(images: ImageSet) -> torch.Tensor:
    scale, shift = images.normalization.constants()
    return images.images[:1] * scale + shift


def _in_torch(model: nn.Module, example: torch.Tensor) -> Callable[[], object]:
    def call() -> object:
        with torch.inference_mode():
            return model(example)

    return call


def _in_onnxruntime(
    model: nn.Module, example: torch.Tensor, path: Path
) -> tuple[Callable[[], object], int] | None:
    from surge.export.onnx import to_onnx

    try:
        written = to_onnx(model, example, path)
    except MissingDependencyError:
        return None
    return start_onnxruntime(str(path), example.numpy(), 1), written.file_bytes


def rows(shipping: Shipping) -> list[dict[str, object]]:
    """Return the table with every cell as it is shown."""
    return [
        {
            "name": served.name,
            "bytes": f"{served.file_bytes:,}",
            "micros": f"{served.micros:.0f}",
            "p90": f"{1e6 * served.timing.p90:.0f}",
            "accuracy": f"{served.accuracy:.2f}",
        }
        for served in shipping.served
    ]


COLUMNS = {
    "name": "network",
    "bytes": "bytes",
    "micros": "µs per image, median",
    "p90": "90th percentile",
    "accuracy": "test accuracy, %",
}


def sentence(shipping: Shipping) -> str:
    """Say what the table shows."""
    if shipping.missing:
        return f"The packed network was written but not run: {shipping.missing}"
    packed, other = shipping.packed, shipping.floating
    faster = other.micros / packed.micros
    speed = (
        f"{faster:.1f} times as fast as the faster of the float ones"
        if faster >= 1
        else f"{1 / faster:.1f} times slower than the faster of the float ones: a network this "
        "small gains nothing from bits"
    )
    same = f"{packed.accuracy:.2f} % against {shipping.torch_accuracy:.2f} % in torch"
    return (
        f"Packed, the binary network takes {packed.file_bytes:,} bytes "
        f"({shipping.smaller:.1f} times smaller than the smaller float file) and is {speed}; "
        f"on the {shipping.images} test images it scores {same}."
    )
