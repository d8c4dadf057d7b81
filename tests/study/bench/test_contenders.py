"""The engines that are compared, on the network that the figures are about."""

import subprocess
import sys

import numpy as np
import pytest
import torch

import surge
from surge.study.bench.contenders import ENGINES, missing_engines, prepare, start, trial
from surge.study.bench.workloads import workload
from tests.runtime.building import import_engine


def test_nothing_is_missing_here():
    import_engine()
    assert missing_engines() == {}


@pytest.mark.slow
def test_every_engine_runs_resnet18_at_224_pixels(tmp_path):
    import_engine()
    work = workload("resnet18-224")
    batch = work.example.numpy()
    with torch.no_grad():
        wanted = {True: work.binary(work.example), False: work.floating(work.example)}
    sizes = {}
    for contender in prepare(work, tmp_path, ENGINES):
        assert not trial(contender, batch.shape, 1).failure
        found = start(contender, batch, 1)()
        truth = wanted[contender.binary].numpy()
        error = np.linalg.norm(found - truth) / np.linalg.norm(truth)
        if "int8" not in contender.engine:
            assert error < 1e-4, contender.engine
        elif not contender.binary:
            assert error < 0.1, contender.engine
        sizes[contender.engine] = contender.file_bytes
    assert sizes["surge int8"] <= 2_200_000 and sizes["surge"] < 4_300_000
    assert sizes["onnxruntime fp32"] > 46_000_000


IN_TURN = """
import os, signal, sys
import subprocess
import sys

import numpy as np
from surge.study.bench.starting import start_openvino

batch = np.zeros((1, 3, 8, 8), dtype=np.float32)
runs = [start_openvino(path, batch, 1) for path in 2 * sys.argv[1:]]
for _ in range(len(runs)):
    runs[0]()
    del runs[0]
caught = []
signal.signal(signal.SIGINT, lambda *_: caught.append(1))
os.kill(os.getpid(), signal.SIGINT)
print("caught", len(caught))
"""


def test_process_bears_signals_after_openvino(tmp_path):
    """Two cores that went in the order they came would end it here."""
    surge.to_onnx(torch.nn.Conv2d(3, 4, 3), torch.zeros(1, 3, 8, 8), tmp_path / "net.onnx")
    words = [sys.executable, "-c", IN_TURN, str(tmp_path / "net.onnx")]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert done.stdout == "caught 1\n", (done.returncode, done.stderr)
