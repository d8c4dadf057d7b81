"""How each engine is started.

NumPy and the engine only: this file is also run as a process of its own, to see how much memory an
engine needs (``peak_memory`` in ``contenders``).
"""

import importlib
import json
import sys
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

Run = Callable[[], Any]
PACKAGES = {"surge": "surge_runtime", "onnxruntime": "onnxruntime", "openvino": "openvino"}
"""Family of an engine -> the package it needs."""


def start_surge(path: str, batch: Any, threads: int) -> Run:
    """Load into the engine of this package."""
    import surge_runtime

    model = surge_runtime.load(path, threads=threads)
    return lambda: model.run(batch)


def start_onnxruntime(path: str, batch: Any, threads: int) -> Run:
    """Load into onnxruntime."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    options.inter_op_num_threads = 1
    options.log_severity_level = 3
    session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    return lambda: session.run(None, {"input": batch})[0]


@cache
def openvino_core() -> Any:
    """Return the only core of this process.

    Each core lends the thread a stack for signals until it goes. Two that go in the order they
    came leave the first one's, freed: the next signal, Ctrl-C for one, then ends the process.
    """
    import openvino

    return openvino.Core()


def start_openvino(path: str, batch: Any, threads: int) -> Run:
    """Load into OpenVINO, with the sizes of the batch fixed."""
    core = openvino_core()
    model = core.read_model(path)
    model.reshape(list(batch.shape))
    settings = {
        "INFERENCE_NUM_THREADS": threads,
        "NUM_STREAMS": 1,
        "PERFORMANCE_HINT": "LATENCY",
        "INFERENCE_PRECISION_HINT": "f32",
    }
    request = core.compile_model(model, "CPU", settings).create_infer_request()
    return lambda: request.infer({0: batch}, share_inputs=True, share_outputs=True)[0]


START = {"surge": start_surge, "onnxruntime": start_onnxruntime, "openvino": start_openvino}


def peak_of(family: str, path: str, shape: list[int], threads: int) -> int:
    """Return the bytes by which loading and three runs raise the peak of this process."""
    importlib.import_module(PACKAGES[family])
    batch = np.zeros(shape, dtype=np.float32)
    before = peak()
    run = START[family](path, batch, threads)
    for _ in range(3):
        run()
    return peak() - before


def peak() -> int:
    """Return the most memory this process has had, in bytes."""
    status = Path("/proc/self/status")
    if status.exists():
        # getrusage would begin with the peak of the process that started this one.
        for line in status.read_text().splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) * 1024
    import resource

    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


if __name__ == "__main__":
    print(peak_of(sys.argv[1], sys.argv[2], json.loads(sys.argv[3]), int(sys.argv[4])))
