"""A rank killed with SIGKILL under torchrun: all restart, and end as if nothing had happened."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

from surge.cli import _training
from surge.errors import ConfigError
from surge.recipes import get_recipe
from surge.train import checkpoint
from surge.train.distributed import World, restarted
from surge.train.run import RunFolder
from tests.nets import assert_same_tensors

EPOCHS = 12
NAME = "digits-cnn-recu-surge"
TIMEOUT = 240


def start(out, *torchrun):
    words = ["train", NAME, "--epochs", EPOCHS, "--limit", 320, "--seed", 1, "--save-every", 0]
    words += ["--out", out / "run", "--results", out / "results", "--device", "cpu"]
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", 2]
    return subprocess.Popen(
        [str(word) for word in [*command, *torchrun, "-m", "surge", *words]],
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def ranks_of(process):
    """The processes that torchrun started, by rank."""
    found = {}
    for entry in Path("/proc").iterdir():
        if not entry.name.isdecimal():
            continue
        try:
            parent = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
            environ = (entry / "environ").read_bytes().split(b"\0")
        except (OSError, ValueError, IndexError):
            continue
        if parent == process.pid:
            ranks = [e for e in environ if e.startswith(b"RANK=")]
            if ranks:
                found[int(ranks[0][5:])] = int(entry.name)
    return found


def epochs_done(out):
    return len(checkpoint.found(out / "run" / "checkpoints")) and max(
        int(path.stem.rpartition("-")[2]) for path in checkpoint.found(out / "run" / "checkpoints")
    )


def final(out):
    return checkpoint.load_newest(out / "run" / "checkpoints", NAME, torch.device("cpu"))[0]


def end(process):
    out, errors = process.communicate(timeout=TIMEOUT)
    assert process.returncode == 0, errors
    return out


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    folder = tmp_path_factory.mktemp("elastic")
    end(start(folder / "whole"))
    process = start(folder / "killed", "--max-restarts", 2)
    give_up = time.monotonic() + TIMEOUT
    while epochs_done(folder / "killed") < 2:
        assert process.poll() is None and time.monotonic() < give_up
        time.sleep(0.05)
    before = epochs_done(folder / "killed")
    os.kill(ranks_of(process)[1], signal.SIGKILL)
    assert before < EPOCHS
    (folder / "said").write_text(end(process))
    return folder


@pytest.mark.slow
def test_restarted_run_ends_with_the_same_weights(runs):
    whole, killed = final(runs / "whole"), final(runs / "killed")
    assert killed["epoch"] == whole["epoch"] == EPOCHS
    assert_same_tensors(killed["model"], whole["model"])


@pytest.mark.slow
def test_restarted_run_continued_from_a_checkpoint_and_stored_one_result(runs):
    assert "continuing after epoch" in (runs / "said").read_text()
    lines = (runs / "killed" / "results" / "digits.jsonl").read_text().splitlines()
    assert len(lines) == 1
    rows = (runs / "killed" / "run" / "metrics.jsonl").read_text().splitlines()
    assert [json.loads(row)["epoch"] for row in rows] == list(range(EPOCHS))


@pytest.mark.parametrize(
    "environ, answer",
    [
        ({}, False),
        ({"TORCHELASTIC_RESTART_COUNT": "0"}, False),
        ({"TORCHELASTIC_RESTART_COUNT": "2"}, True),
        ({"SLURM_RESTART_COUNT": "1"}, True),
        ({"SLURM_RESTART_COUNT": "x"}, False),
    ],
)
def test_restarts_are_read_from_the_launcher(environ, answer):
    assert restarted(environ) is answer


@pytest.fixture
def begun(tmp_path):
    """A run with a checkpoint, as a killed rank leaves it."""
    recipe = get_recipe(NAME)
    folder = RunFolder.create(tmp_path / "run", recipe, {"seed": 1, "old": True})
    checkpoint.save(folder.checkpoints, {"recipe": NAME}, 3)
    return folder, recipe


def test_restarted_command_takes_up_its_own_run(begun, monkeypatch):
    monkeypatch.setenv("TORCHELASTIC_RESTART_COUNT", "1")
    folder, recipe = begun
    assert _training._taken_up(folder, recipe, {"seed": 1}) == {"seed": 1, "old": True}
    _training._made(folder, recipe, {"seed": 1}, World())  # which leaves it as it is
    assert RunFolder.open(folder.path)[2] == {"seed": 1, "old": True}


def test_restarted_command_refuses_another_run(begun, monkeypatch):
    monkeypatch.setenv("TORCHELASTIC_RESTART_COUNT", "1")
    folder, recipe = begun
    with pytest.raises(ConfigError, match="not the run that was restarted"):
        _training._taken_up(folder, recipe, {"seed": 2})


def test_first_start_never_takes_up_a_run(begun, monkeypatch):
    monkeypatch.delenv("TORCHELASTIC_RESTART_COUNT", raising=False)
    folder, recipe = begun
    with pytest.raises(ConfigError, match="holds a run already"):
        _training._made(folder, recipe, {"seed": 1}, World())


def test_run_killed_before_its_first_checkpoint_begins_anew(tmp_path, monkeypatch):
    monkeypatch.setenv("TORCHELASTIC_RESTART_COUNT", "1")
    recipe = get_recipe(NAME)
    folder = RunFolder.create(tmp_path / "run", recipe, {"seed": 1, "old": True})
    assert _training._taken_up(folder, recipe, {"seed": 1}) == {"seed": 1}
    _training._made(folder, recipe, {"seed": 1}, World())
    assert RunFolder.open(folder.path)[2] == {"seed": 1}
