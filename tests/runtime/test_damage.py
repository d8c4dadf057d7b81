"""A damaged or hostile file is an error message, never a crash."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from surge.export import pack
from tests.nets import cnn
from tests.runtime.building import BUILD, RUNTIME

SCRIPT = Path(__file__).with_name("damage.py")


@pytest.fixture(scope="module")
def small_file(tmp_path_factory):
    path = tmp_path_factory.mktemp("damage") / "small.surge"
    pack(cnn("reactnet"), torch.zeros(1, 2, 6, 6), path)
    return path


def count_refused(mode, path, library, **environment):
    """Run the script in its own process and return (refused, tried)."""
    done = subprocess.run(
        [sys.executable, str(SCRIPT), mode, str(path)],
        capture_output=True,
        text=True,
        env={
            **os.environ,
            **environment,
            "PYTHONPATH": str(RUNTIME / "python"),
            "SURGE_RUNTIME_LIBRARY": str(library),
        },
    )
    assert done.returncode == 0, done.stderr[-4000:]
    return tuple(int(word) for word in done.stdout.split())


@pytest.mark.parametrize("mode", ["truncations", "flips"])
def test_damaged_file_is_always_refused(engine, small_file, mode):
    refused, tried = count_refused(mode, small_file, BUILD / "runtime" / "libsurge_runtime.so")
    assert refused == tried


def preloaded(*names):
    """Return where the compiler has its libraries: they must be there before Python is."""
    found = [
        subprocess.run(["g++", f"-print-file-name={name}"], capture_output=True, text=True).stdout
        for name in names
    ]
    return " ".join(path.strip() for path in found)


def test_hostile_graph_is_refused_or_runs_under_sanitizers(sanitized, small_file):
    refused, tried = count_refused(
        "graphs",
        small_file,
        sanitized.parent / "libsurge_runtime.so",
        LD_PRELOAD=preloaded("libasan.so", "libstdc++.so"),
        ASAN_OPTIONS="detect_leaks=0:allocator_may_return_null=1",
    )
    assert tried > refused > tried // 2
