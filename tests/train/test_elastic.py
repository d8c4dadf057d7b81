"""A rank killed with SIGKILL under torchrun: all restart, and end as if nothing had happened."""

import json
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from surge.cli import _going_on
from surge.cli.train import TrainCommand
from surge.errors import ConfigError
from surge.recipes import get_recipe
from surge.train import checkpoint
from surge.train.distributed import World, job_of, restarted
from surge.train.run import RunFolder
from tests.nets import assert_same_tensors
from tests.train.small import CPU

EPOCHS = 12
NAME = "digits-cnn-recu-surge"
TIMEOUT = 240


def start(out, *torchrun, launched=("--standalone", "--nproc-per-node", 2)):
    words = ["train", NAME, "--epochs", EPOCHS, "--limit", 320, "--seed", 1, "--save-every", 0]
    words += ["--out", out / "run", "--results", out / "results", "--device", "cpu"]
    command = [sys.executable, "-m", "torch.distributed.run", *launched]
    return subprocess.Popen(
        [str(word) for word in [*command, *torchrun, "-m", "surge", *words]],
        env={**os.environ, "OMP_NUM_THREADS": "1", "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"},
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


def wait_for_epochs(out, count, processes):
    give_up = time.monotonic() + TIMEOUT
    while epochs_done(out) < count:
        assert all(process.poll() is None for process in processes)
        assert time.monotonic() < give_up
        time.sleep(0.05)


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
    wait_for_epochs(folder / "killed", 2, [process])
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


def test_restarted_command_takes_up_its_own_run(begun):
    folder, recipe = begun
    assert _going_on.taken_up(folder, recipe, {"seed": 1}) == {"seed": 1, "old": True}
    _going_on.make(folder, recipe, {"seed": 1}, World(), CPU, anew=True)  # leaves it as it is
    assert RunFolder.open(folder.path)[2] == {"seed": 1, "old": True}


def test_restarted_command_refuses_another_run(begun):
    folder, recipe = begun
    with pytest.raises(ConfigError, match="not the run that was restarted"):
        _going_on.taken_up(folder, recipe, {"seed": 2})


def test_first_start_never_takes_up_a_run(begun, monkeypatch):
    monkeypatch.delenv("TORCHELASTIC_RESTART_COUNT", raising=False)
    folder, recipe = begun
    assert not _going_on.started_before(folder, World(), CPU)
    with pytest.raises(ConfigError, match="holds a run already"):
        _going_on.make(folder, recipe, {"seed": 1}, World(), CPU, anew=False)


def test_run_killed_before_its_first_checkpoint_begins_anew(tmp_path):
    recipe = get_recipe(NAME)
    folder = RunFolder.create(tmp_path / "run", recipe, {"seed": 1, "old": True})
    assert _going_on.taken_up(folder, recipe, {"seed": 1}) == {"seed": 1}
    _going_on.make(folder, recipe, {"seed": 1}, World(), CPU, anew=True)
    assert RunFolder.open(folder.path)[2] == {"seed": 1}


@pytest.mark.parametrize(
    "environ, name",
    [
        ({}, None),
        ({"SLURM_JOB_ID": "7"}, None),  # a shell in an allocation starts many commands
        ({"TORCHELASTIC_RUN_ID": "r18", "SLURM_JOB_ID": "7"}, "r18"),
        ({"TORCHELASTIC_RUN_ID": "none"}, None),
        ({"TORCHELASTIC_RUN_ID": "none", "SLURM_JOB_ID": "7", "SLURM_STEP_ID": "2"}, "slurm-7.2"),
    ],
)
def test_job_is_named_by_torchrun_or_slurm(environ, name):
    assert job_of(environ) == name


@pytest.mark.parametrize("job, answer", [("r18", True), ("r19", False), ("none", False)])
def test_agent_whose_own_processes_did_not_fail_knows_its_job(tmp_path, monkeypatch, job, answer):
    """It counts no restart when a process of another machine died, or a machine was replaced."""
    monkeypatch.setenv("TORCHELASTIC_RESTART_COUNT", "0")
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "r18" if answer else "none")
    notes = _going_on.notes_of(TrainCommand(NAME))
    folder = RunFolder.create(tmp_path / "run", get_recipe(NAME), {"seed": 1, **notes})
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", job)
    assert _going_on.started_before(folder, World(), CPU) is answer


def test_restart_that_another_agent_counted_is_one_for_all(tmp_path, monkeypatch):
    monkeypatch.delenv("TORCHELASTIC_RESTART_COUNT", raising=False)
    others = SimpleNamespace(any=lambda *_: True)
    assert _going_on.started_before(RunFolder(tmp_path), others, CPU)


def start_agents(out):
    """Two agents with one process each, as two machines have them."""
    with socket.socket() as free:
        free.bind(("localhost", 0))
        port = free.getsockname()[1]
    words = ["--nnodes", 2, "--nproc-per-node", 1, "--max-restarts", 3, "--local-addr", "localhost"]
    words += ["--rdzv-backend", "c10d", "--rdzv-endpoint", f"localhost:{port}", "--rdzv-id", "two"]
    return [start(out, *words, launched=()) for _ in range(2)]


@pytest.mark.slow
@pytest.mark.parametrize("victim", [0, 1])
def test_run_of_two_agents_survives_the_death_of_a_process(tmp_path, victim):
    agents = start_agents(tmp_path)
    wait_for_epochs(tmp_path, 2, agents)
    ranks = {rank: pid for agent in agents for rank, pid in ranks_of(agent).items()}
    os.kill(ranks[victim], signal.SIGKILL)
    for agent in agents:
        end(agent)
    assert final(tmp_path)["epoch"] == EPOCHS
    assert len((tmp_path / "results" / "digits.jsonl").read_text().splitlines()) == 1
