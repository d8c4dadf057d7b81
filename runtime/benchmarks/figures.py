"""The engine's figures: layers and ResNet-18 against onnxruntime fp32, and two threads.

    python runtime/benchmarks/figures.py            all of it, about two minutes
    python runtime/benchmarks/figures.py network    or layers, threads

Contenders take turns in one process, and ratios are of medians; the fastest times are shown too,
because other programs on the machine can double a median.
"""

import json
import multiprocessing
import os
import sys
import tempfile
import time
import warnings
from collections.abc import Callable
from pathlib import Path

import numpy as np
import surge_runtime
import torch
from torch import nn

import surge
from surge.export.onnx import onnx_model, quiet
from surge.models import build_model
from surge.train.run import git_state, hardware

PIXELS = {"mean": [0.485, 0.456, 0.406], "std": [0.229, 0.224, 0.225], "maximum": 255}
IMAGE = (1, 3, 224, 224)


def interleaved(calls: dict[str, Callable[[], object]], seconds: float) -> dict[str, np.ndarray]:
    """Call all in turn until the time is up; return milliseconds."""
    times: dict[str, list[float]] = {name: [] for name in calls}
    for call in calls.values():
        call()
    end = time.perf_counter() + seconds
    while time.perf_counter() < end:
        for name, call in calls.items():
            start = time.perf_counter()
            call()
            times[name].append(1e3 * (time.perf_counter() - start))
    return {name: np.array(values) for name, values in times.items()}


def show(title: str, times: dict[str, np.ndarray], reference: str) -> None:
    """Print a table with ratios to the reference."""
    print(title)
    base = times[reference]
    for name, values in times.items():
        print(
            f"  {name:24s} median {np.median(values):8.3f} ms  min {values.min():8.3f} ms   "
            f"{np.median(base) / np.median(values):5.2f}x by medians  "
            f"{base.min() / values.min():5.2f}x by minima"
        )


def onnx_call(model: nn.Module, x: torch.Tensor) -> Callable[[], object]:
    """Return a call of onnxruntime on one thread."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    with quiet():
        content = onnx_model(model.eval(), x).SerializeToString()
    session = onnxruntime.InferenceSession(content, options, ["CPUExecutionProvider"])
    name = session.get_inputs()[0].name
    return lambda: session.run(None, {name: x.numpy()})


def engine_call(
    model: nn.Module, x: torch.Tensor, *, threads: int = 1, **options: object
) -> Callable[[], object]:
    """Pack a model and return a call of the engine."""
    with tempfile.TemporaryDirectory() as folder:
        surge.pack(model.eval(), x, Path(folder) / "m.surge", **options)
        loaded = surge_runtime.load(Path(folder) / "m.surge", threads=threads)
    batch = x.numpy()
    return lambda: loaded.run(batch)


def binary(model: nn.Module, **options: object) -> nn.Module:
    """Binarise in silence."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        surge.binarize_(model, "bireal", **options)
    return model


def chain(make: Callable[[], nn.Module], depth: int) -> nn.Sequential:
    """Return several equal layers, with the norms that belong to them."""
    return nn.Sequential(*(layer for _ in range(depth) for layer in (make(),)))


def layers() -> None:
    """One layer = (six in a row - one) / 5, so that the ends of the network do not count."""
    shapes = {
        f"3x3, {c} channels, {s} pixels": (c, s)
        for c, s in ((64, 56), (128, 28), (256, 14), (512, 7))
    }
    for title, (channels, size) in shapes.items():

        def unit(c: int = channels) -> nn.Module:
            conv = nn.Conv2d(c, c, 3, padding=1, bias=False)
            return nn.Sequential(conv, nn.BatchNorm2d(c))

        _layer(title, unit, torch.randn(1, channels, size, size))

    def wide() -> nn.Module:
        return nn.Sequential(nn.Linear(768, 3072, bias=False))

    _layer("linear 768 -> 3072, 128 tokens", wide, torch.randn(1, 128, 768), depths=(1,))


def _layer(
    title: str, unit: Callable[[], nn.Module], x: torch.Tensor, depths: tuple[int, ...] = (1, 6)
) -> None:
    calls = {}
    for depth in depths:
        calls[f"float {depth}"] = onnx_call(chain(unit, depth), x)
        network = binary(chain(unit, depth), keep_first=False, keep_last=False)
        calls[f"binary {depth}"] = engine_call(network, x)
    times = interleaved(calls, 6)
    if len(depths) > 1:
        times = {
            kind: np.sort(times[f"{kind} 6"])[: times[f"{kind} 1"].size] / 5
            - np.sort(times[f"{kind} 1"]) / 5
            for kind in ("float", "binary")
        }
    else:
        times = {kind: times[f"{kind} 1"] for kind in ("float", "binary")}
    show(title, times, "float")


def network() -> None:
    """ResNet-18 at 224 pixels, batch 1, one thread."""
    torch.manual_seed(0)
    x = torch.randn(IMAGE)
    calls = {"onnxruntime fp32": onnx_call(build_model("bireal_resnet18", activation="relu"), x)}
    model = binary(build_model("bireal_resnet18"), skip=("*downsample*",))
    for rest in ("fp32", "fp16", "int8"):
        calls[f"surge, rest {rest}"] = engine_call(model, x, rest=rest, preprocessing=PIXELS)
    show("ResNet-18, 224 pixels", interleaved(calls, 20), "onnxruntime fp32")


def spin() -> None:
    """Keep a core busy."""
    while True:
        pass


def threads() -> None:
    """One and two threads, alone and beside a busy neighbour; added to results/threads.jsonl."""
    x = torch.randn(IMAGE)
    model = binary(build_model("bireal_resnet18"), skip=("*downsample*",))
    calls = {f"{n} threads": engine_call(model, x, threads=n) for n in (1, 2)}
    found = {"alone": interleaved(calls, 8)}
    neighbour = multiprocessing.get_context("spawn").Process(target=spin, daemon=True)
    neighbour.start()
    try:
        time.sleep(1)
        found["beside a busy neighbour"] = interleaved(calls, 8)
    finally:
        neighbour.terminate()
    kind = hardware(torch.device("cpu")).partition(",")[0]
    place = {"hardware": f"{kind}, {os.cpu_count()} cores", "commit": git_state()[0]}
    with Path("results/threads.jsonl").open("a") as file:
        for where, times in found.items():
            show(where, times, "1 threads")
            for name, values in times.items():
                row = {"network": "resnet18-224", "threads": int(name[0]), "where": where}
                row |= {"median_ms": round(float(np.median(values)), 3), "runs": values.size}
                file.write(json.dumps(row | place) + "\n")


if __name__ == "__main__":
    torch.set_num_threads(1)
    parts = {"network": network, "layers": layers, "threads": threads}
    for part in sys.argv[1:] or parts:
        parts[part]()
