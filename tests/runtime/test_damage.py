"""A damaged or hostile file is an error message, never a crash."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.runtime.building import BUILD, RUNTIME
from tests.runtime.seeds import write_seeds

SCRIPT = Path(__file__).with_name("damage.py")
FLIPS = 10_000


@pytest.fixture(scope="module")
def seeds(tmp_path_factory):
    return write_seeds(tmp_path_factory.mktemp("seeds"))


def count_refused(mode, path, library, **environment):
    """Run the script in its own process and return (refused, tried)."""
    done = subprocess.run(
        [sys.executable, str(SCRIPT), *mode.split(), str(path)],
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


@pytest.mark.parametrize("mode", ["truncations 0", f"flips {FLIPS}"])
def test_damaged_file_is_always_refused(engine, seeds, mode):
    refused, tried = count_refused(mode, seeds[0], BUILD / "runtime" / "libsurge_runtime.so")
    assert refused == tried >= 1000


def preloaded(*names):
    """Return where the compiler has its libraries: they must be there before Python is."""
    found = [
        subprocess.run(["g++", f"-print-file-name={name}"], capture_output=True, text=True).stdout
        for name in names
    ]
    return " ".join(path.strip() for path in found)


def under_sanitizers(sanitized, mode, path):
    return count_refused(
        mode,
        path,
        sanitized.parent / "libsurge_runtime.so",
        LD_PRELOAD=preloaded("libasan.so", "libstdc++.so"),
        ASAN_OPTIONS="detect_leaks=0:allocator_may_return_null=1",
    )


def test_damaged_file_is_refused_under_sanitizers(sanitized, seeds):
    refused, tried = under_sanitizers(sanitized, f"flips {FLIPS}", seeds[0])
    assert refused == tried == FLIPS


@pytest.mark.parametrize("index", range(7))
def test_hostile_graph_is_refused_or_runs_under_sanitizers(sanitized, seeds, index):
    refused, tried = under_sanitizers(sanitized, "graphs 150", seeds[index])
    assert tried > refused > tried // 2


def fuzz(sanitized, seeds, seconds, seed):
    """Return what the fuzzer prints; it must end by itself, without a finding."""
    done = subprocess.run(
        [str(sanitized.parent / "fuzz"), str(seconds), str(seed), *map(str, seeds)],
        capture_output=True,
        text=True,
        env={**os.environ, "ASAN_OPTIONS": "allocator_may_return_null=1"},
    )
    assert done.returncode == 0, done.stderr[-4000:]
    return [int(word) for word in done.stdout.split() if word.isdigit()]


def test_fuzzer_finds_nothing_in_a_few_seconds(sanitized, seeds):
    tried, ran = fuzz(sanitized, seeds, 3, 0)
    assert tried > ran > 0


@pytest.mark.slow
def test_fuzzer_finds_nothing_in_ten_minutes(sanitized, seeds):
    tried, ran = fuzz(sanitized, seeds, 600, 1)
    assert tried > 10_000 and ran > 100
