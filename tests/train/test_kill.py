"""A run killed with SIGKILL at random moments ends as if nothing had happened, bit for bit."""

import json
import os
import random
import signal
import subprocess
import sys
import time

import pytest
import torch

from surge.train.checkpoint import found
from tests.nets import assert_same_tensors

KILLS = 3
EPOCHS = 20
TRAIN = [sys.executable, "-m", "surge", "train"]
ENVIRONMENT = {**os.environ, "OMP_NUM_THREADS": "1"}
TIMEOUT = 300


def start(*words):
    return subprocess.Popen(
        [*TRAIN, *map(str, words)],
        env=ENVIRONMENT,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )


def end(process):
    _, errors = process.communicate(timeout=TIMEOUT)
    assert process.returncode == 0, errors


def lines(path):
    file = path / "metrics.jsonl"
    return file.read_text().count("\n") if file.exists() else 0


def kill_later(process, path, moments):
    """Wait for some more epochs, then for a random part of one, and kill."""
    wanted = lines(path) + moments.choice((0, 1, 2))
    deadline = time.monotonic() + TIMEOUT
    while lines(path) <= wanted and process.poll() is None:
        assert time.monotonic() < deadline
        time.sleep(0.001)
    time.sleep(moments.random() * 0.05)
    process.send_signal(signal.SIGKILL)
    process.communicate()
    return process.returncode


def final_state(path):
    newest, *_ = found(path / "checkpoints")
    return torch.load(newest, weights_only=True)


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """The folders of an uninterrupted run and of one that was killed again and again."""
    folder = tmp_path_factory.mktemp("kill")
    words = ["digits-cnn-recu-surge", "--seed", 1, "--epochs", EPOCHS, "--limit", 320]
    more = ["--save-every", 0, "--device", "cpu", "--results"]
    whole = start(*words, "--out", folder / "whole", *more, folder / "a")
    moments = random.Random(time.time_ns())
    killed = folder / "killed"
    process = start(*words, "--out", killed, *more, folder / "b")
    codes = []
    for _ in range(KILLS):
        codes.append(kill_later(process, killed, moments))
        process = start("--resume", killed, *more, folder / "b")
    end(process)
    end(whole)
    assert codes == [-signal.SIGKILL] * KILLS, "the run ended before it could be killed"
    return folder


def test_killed_run_ends_with_the_same_weights(runs):
    whole, killed = final_state(runs / "whole"), final_state(runs / "killed")
    assert killed["epoch"] == whole["epoch"] == EPOCHS
    assert_same_tensors(killed["model"], whole["model"])
    for key, state in whole["optimizer"]["state"].items():
        assert_same_tensors(killed["optimizer"]["state"][key], state)


def test_killed_run_has_every_epoch_once_with_the_same_numbers(runs):
    def rows(name):
        text = (runs / name / "metrics.jsonl").read_text()
        found = [json.loads(line) for line in text.splitlines()]
        return [{k: v for k, v in row.items() if k != "seconds"} for row in found]

    assert [row["epoch"] for row in rows("killed")] == list(range(EPOCHS))
    assert rows("killed") == rows("whole")


def test_killed_run_stores_one_result(runs):
    (whole,), (killed,) = (
        [json.loads(line) for line in (runs / name / "digits.jsonl").read_text().splitlines()]
        for name in ("a", "b")
    )
    for key in ("row", "seed", "epochs", "last", "best", "overrides"):
        assert killed[key] == whole[key]


def test_killed_run_leaves_no_scraps(runs):
    names = sorted(path.name for path in (runs / "killed" / "checkpoints").iterdir())
    assert names == [f"epoch-{EPOCHS - 1:05d}.pt", f"epoch-{EPOCHS:05d}.pt"]
