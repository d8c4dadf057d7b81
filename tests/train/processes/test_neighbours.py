"""Runs on one GPU are counted, whatever commands began them."""

import subprocess
import sys

import pytest
import torch

from surge.train.processes.neighbours import counted, place_of

OTHER = """
import sys
from pathlib import Path
from surge.train.processes.neighbours import counted
with counted(Path(sys.argv[1])):
    print("there", flush=True)
    sys.stdin.read()
"""


@pytest.fixture
def other(tmp_path):
    words = [sys.executable, "-c", OTHER, str(tmp_path / "gpu")]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout.readline() == b"there\n"
        yield process
        process.kill()


def test_counted_counts_a_run_of_another_process(other, tmp_path):
    with counted(tmp_path / "gpu") as neighbours:
        assert neighbours() == 2


def test_counted_forgets_a_process_that_was_killed(other, tmp_path):
    other.kill()
    other.wait()
    with counted(tmp_path / "gpu") as neighbours:
        assert neighbours() == 1


def test_counted_tells_gpus_apart(other, tmp_path):
    with counted(tmp_path / "another") as neighbours:
        assert neighbours() == 1


def test_counted_counts_runs_of_one_process(tmp_path):
    with counted(tmp_path) as neighbours:
        with counted(tmp_path):
            assert neighbours() == 2
        assert neighbours() == 1
    assert list(tmp_path.iterdir()) == []


def test_counted_does_without_a_place(tmp_path):
    (tmp_path / "file").write_text("no folder")
    for place in (None, tmp_path / "file"):
        with counted(place) as neighbours:
            assert neighbours() == 1


def test_counted_outlives_its_folder(tmp_path):
    with counted(tmp_path / "gpu") as neighbours:
        for path in (tmp_path / "gpu").iterdir():
            path.unlink()
        (tmp_path / "gpu").rmdir()
        assert neighbours() == 1


def test_place_of_a_processor_is_none():
    assert place_of(torch.device("cpu")) is None


@pytest.mark.gpu
def test_place_of_a_gpu_is_its_own():
    places = {place_of(torch.device("cuda", n)) for n in range(torch.cuda.device_count())}
    assert None not in places and len(places) == torch.cuda.device_count()
