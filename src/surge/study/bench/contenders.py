"""The engines that are compared: each gets the same network as its own file and runs it."""

import importlib
import importlib.util
import json
import logging
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from surge.data.imageset import IMAGENET
from surge.export.deploy import deployed
from surge.export.onnx import INPUT, onnx_model, quiet
from surge.export.packing import pack
from surge.study.bench import starting
from surge.study.bench.starting import PACKAGES, Run
from surge.study.bench.workloads import Workload
from surge.summary import Rest

INSTALL = {
    "surge": "pip install surge-runtime",
    "onnxruntime": "pip install 'surge-bnn[onnx]'",
    "openvino": "pip install 'surge-bnn[onnx,openvino]'",
}
ENGINES = (
    "surge",
    "surge int8",
    "onnxruntime fp32",
    "onnxruntime int8",
    "openvino fp32",
    "openvino int8",
    "openvino binary",
)
"""What a workload is run in: ``surge`` keeps real weights as fp32, ``surge int8`` as int8."""
CALIBRATION = 4
"""Random batches that the ranges of int8 activations are taken from."""


@dataclass(frozen=True)
class Contender:
    """One engine with its file, ready to be started here or in a process of its own."""

    engine: str
    path: Path
    binary: bool
    """Whether it runs the binary network; else its float twin."""

    @property
    def family(self) -> str:
        """The package behind it."""
        return self.engine.split()[0]

    @property
    def file_bytes(self) -> int:
        """Size on disk; OpenVINO has two files."""
        beside = self.path.with_suffix(".bin")
        more = beside.stat().st_size if self.path.suffix == ".xml" else 0
        return self.path.stat().st_size + more


def missing_engines() -> dict[str, str]:
    """Return the engines that are not installed, each with the command that installs it."""
    absent = {family for family, name in PACKAGES.items() if not _installed(name)}
    if not _installed("onnx") or not _installed("onnxscript"):
        absent |= {"onnxruntime", "openvino"}
    return {engine: INSTALL[engine.split()[0]] for engine in ENGINES if engine.split()[0] in absent}


def _installed(package: str) -> bool:
    try:
        if package == "surge_runtime":
            importlib.import_module(package).tiers()  # it may be there without its native library
        return importlib.util.find_spec(package) is not None
    except (ImportError, ValueError):
        return False


def prepare(
    work: Workload, folder: Path, engines: tuple[str, ...], *, packed: Path | None = None
) -> Iterator[Contender]:
    """Write the files of all engines, one after the other; ``packed`` is one that exists."""
    example = work.example[:1]
    twin = folder / "float.onnx"
    whole = folder / "float-int8.onnx"
    for engine in engines:
        match engine:
            case "surge" if packed is not None:
                path = packed
            case "surge" | "surge int8":
                path = folder / f"{engine.replace(' ', '-')}.surge"
                rest: Rest = "int8" if "int8" in engine else "fp32"
                pack(work.binary, example, path, rest=rest, preprocessing=_pixels(example))
            case "onnxruntime fp32" | "openvino fp32":
                path = _float_file(work, twin)
            case "onnxruntime int8" | "openvino int8":
                path = whole if whole.exists() else _int8_file(_float_file(work, twin), work, whole)
            case _:
                path = _openvino_file(work, folder / "binary.xml")
        yield Contender(engine, path, engine.startswith("surge") or engine == "openvino binary")


def _pixels(example: torch.Tensor) -> dict[str, Any] | None:
    """Return the preprocessing of photographs: with it, int8 reads their pixels as they are."""
    if example.dim() != 4 or example.shape[1] != len(IMAGENET.mean):
        return None
    return {"mean": IMAGENET.mean, "std": IMAGENET.std, "maximum": IMAGENET.maximum}


def _float_file(work: Workload, path: Path) -> Path:
    if not path.exists():
        proto = onnx_model(deployed(work.floating, "bench"), work.example)
        path.write_bytes(proto.SerializeToString())
    return path


def _openvino_file(work: Workload, path: Path) -> Path:
    import openvino

    from surge.export.openvino import openvino_model

    made, _, _ = openvino_model(deployed(work.binary, "bench"), work.example[:1])
    openvino.save_model(made, path, compress_to_fp16=False)
    return path


def _int8_file(twin: Path, work: Workload, path: Path) -> Path:
    """Quantise the float twin: activations u8, weights s8 per channel, as both engines like it."""
    from onnxruntime.quantization import (
        CalibrationDataReader,
        QuantFormat,
        QuantType,
        quantize_static,
    )

    generator = torch.Generator().manual_seed(2)
    shape = (1, *work.example.shape[1:])

    class Batches(CalibrationDataReader):  # type: ignore[misc]
        def __init__(self) -> None:
            self.left = CALIBRATION

        def get_next(self) -> dict[str, Any] | None:
            self.left -= 1
            return (
                {INPUT: torch.randn(shape, generator=generator).numpy()} if self.left >= 0 else None
            )

    with quiet():
        logging.disable(logging.WARNING)  # it advises a preprocessing that changes nothing here
        try:
            quantize_static(
                twin,
                path,
                Batches(),
                quant_format=QuantFormat.QDQ,
                activation_type=QuantType.QUInt8,
                weight_type=QuantType.QInt8,
                per_channel=True,
            )
        finally:
            logging.disable(logging.NOTSET)
    return path


def start(contender: Contender, batch: np.ndarray[Any, Any], threads: int) -> Run:
    """Load a contender's file and return a function that runs the batch."""
    return starting.START[contender.family](str(contender.path), batch, threads)


@dataclass(frozen=True)
class Trial:
    """How an engine did in a process of its own."""

    peak_bytes: int | None = None
    """What loading and running add to the memory of the process, at their peak."""
    failure: str = ""
    """Why it cannot run here; empty where it can."""


LIMIT = {"ONEDNN_MAX_CPU_ISA": "AVX512_CORE_FP16"}
"""Keeps OpenVINO from AMX, which some virtual machines announce and then do not have."""


def trial(contender: Contender, shape: tuple[int, ...], threads: int) -> Trial:
    """Run a contender in a process of its own: what kills that one must not kill this one.

    OpenVINO gets a second chance without AMX; if that helps, it is kept off AMX from then on.
    """
    found = _alone(contender, shape, threads, {})
    if not found.failure or contender.family != "openvino" or set(LIMIT) <= set(os.environ):
        return found
    again = _alone(contender, shape, threads, LIMIT)
    if again.failure:
        return found
    if _loaded("openvino_intel_cpu_plugin"):  # it has made its choice, once for this process
        return Trial(
            failure=f"{found.failure}; {' '.join('='.join(e) for e in LIMIT.items())} helps"
        )
    os.environ.update(LIMIT)
    return again


def _loaded(library: str) -> bool:
    maps = Path("/proc/self/maps")
    return maps.exists() and library in maps.read_text()


def _alone(
    contender: Contender, shape: tuple[int, ...], threads: int, more: dict[str, str]
) -> Trial:
    # Not started as a script: the folder of a script is searched first, and ours has a queue.py.
    code = "import runpy, sys; runpy.run_path(sys.argv.pop(1), run_name='__main__')"
    words = [starting.__file__, contender.family, str(contender.path), json.dumps(shape)]
    done = subprocess.run(
        [sys.executable, "-c", code, *words, str(threads)],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, **more, "PYTHONPATH": os.pathsep.join(sys.path)},
    )
    if done.returncode < 0:
        return Trial(failure=f"killed by {signal.Signals(-done.returncode).name}")
    if done.returncode:
        return Trial(failure=" ".join(done.stderr.strip().splitlines()[-1:]) or "no reason given")
    return Trial(peak_bytes=int(done.stdout))
