"""``surge reproduce --jobs``: runs in processes of their own, which nothing stops but their end."""

import json
import os
import signal
import subprocess
import sys
import time

import pytest
import torch

from surge.cli import _planning as planning
from surge.cli import _reproducing as reproducing
from surge.cli import main
from surge.recipes import get_recipe, overridden
from surge.train.checkpoint import found
from tests.cli import unlucky
from tests.data.trees import make_tree
from tests.nets import assert_same_tensors
from tests.train.small import small_sets

ROWS = ("--rows", "cnn-bnn", "cnn-bnn-surge")
TIMEOUT = 300


@pytest.fixture
def reproduce(tmp_path, monkeypatch, capsys):
    """Run the command on 64 digits in an empty folder; return exit code, output and errors."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("OMP_NUM_THREADS", "1")  # the same sums, whatever the share of the cores
    monkeypatch.setattr(reproducing, "load_sets", lambda *_, **__: small_sets(64, 40))
    monkeypatch.setattr(reproducing, "train_apart", unlucky.with_few_images)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)

    def run(*words):
        code = main(["reproduce", "digits", "--device", "cpu", *words])
        shown = capsys.readouterr()
        return code, shown.out, shown.err

    yield run
    torch.set_num_threads(threads)


def stored(folder):
    path = folder / "digits.jsonl"
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def final(path):
    newest, *_ = found(path / "checkpoints")
    return torch.load(newest, weights_only=True)


def epochs(path):
    rows = [json.loads(line) for line in (path / "metrics.jsonl").read_text().splitlines()]
    return [{k: v for k, v in row.items() if k != "seconds"} for row in rows]


def test_runs_of_several_processes_are_what_each_is_alone(reproduce, tmp_path):
    words = (*ROWS, "--seeds", "0", "1", "--epochs", "2")
    assert reproduce(*words, "--runs", "alone", "--results", "a")[0] == 0
    code, out, err = reproduce(*words, "--runs", "beside", "--results", "b", "--jobs", "2")
    assert (code, err) == (0, "")
    assert "4 of 4 runs are missing" in out and "| cnn-bnn-surge | 2 |" in out
    assert "cnn-bnn 1: epoch 1/2 top1 " in out and "(2 runs at once)" in out
    alone, beside = (
        {
            (r["row"], r["seed"]): {k: v for k, v in r.items() if k not in ("seconds", "commit")}
            for r in stored(tmp_path / name)
        }
        for name in ("a", "b")
    )
    assert len(beside) == 4
    for key, line in alone.items():
        assert line.pop("side_by_side") == 1 and beside[key].pop("side_by_side") == 2
        assert beside[key] == line
    for path in sorted((tmp_path / "alone").iterdir()):
        other = tmp_path / "beside" / path.name
        assert_same_tensors(final(other)["model"], final(path)["model"])
        assert epochs(other) == epochs(path)
        assert (other / "log.txt").read_text().count("\n") >= 3
        assert (other / "summary.txt").exists()


@pytest.mark.slow
def test_killed_diverged_and_late_runs_are_named_and_the_next_call_does_them(
    reproduce, tmp_path, monkeypatch
):
    words = (*ROWS, "cnn-recu", "cnn-recu-surge", "--seeds", "0", "--epochs", "2")
    with monkeypatch.context() as patch:
        patch.setattr(reproducing, "train_apart", unlucky.killed_diverging_or_late)
        code, out, _ = reproduce(*words, "--jobs", "3", "--budget", "2s")
    assert code == 1
    assert "cnn-bnn 0: its process died (SIGKILL; memory may be short). Last words in " in out
    assert "cnn-bnn-surge 0: Training diverged in epoch " in out
    assert (
        "Stopped after epoch 1 of 2. Continue with: surge train --resume runs/digits-cnn-recu-"
        in out
    )
    assert stored(tmp_path / "results") == []
    log = (tmp_path / "runs" / "digits-cnn-bnn-surge-2ep-seed0" / "log.txt").read_text()
    assert "DivergedError" in log
    assert not (tmp_path / "runs" / "digits-cnn-recu-surge-2ep-seed0").exists()  # no time was left
    code, out, _ = reproduce(*words, "--jobs", "2")
    assert code == 0 and "4 of 4 runs are missing" in out
    lines = {r["row"]: r["side_by_side"] for r in stored(tmp_path / "results")}
    assert lines == {"cnn-bnn": 2, "cnn-bnn-surge": 2, "cnn-recu": 3, "cnn-recu-surge": 2}
    assert reproduce(*words, "--runs", "whole", "--results", "whole")[0] == 0
    for path in sorted((tmp_path / "whole").glob("digits-*")):
        other = tmp_path / "runs" / path.name
        assert_same_tensors(final(other)["model"], final(path)["model"])
        assert epochs(other) == epochs(path)


def test_missing_data_is_one_line(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    words = ["--rows", "resnet20-bnn", "resnet20-recu", "--seeds", "0", "--jobs", "2"]
    code = main(["reproduce", "cifar10", *words, "--device", "cpu", "--data", str(tmp_path)])
    err = capsys.readouterr().err
    assert code == 2 and err.count("\n") == 1 and "error: " in err and "cifar" in err


def test_run_waits_for_its_teacher(tmp_path, monkeypatch, capsys):
    make_tree(
        tmp_path / "imagenette96", [f"n{i}" for i in range(10)], train=2, val=1, size=(96, 96)
    )
    monkeypatch.setattr(reproducing, "train_apart", unlucky.narrow_network)
    monkeypatch.setattr(
        planning, "_teacher", lambda name, changes: overridden(get_recipe(name), changes)
    )
    monkeypatch.chdir(tmp_path)
    words = ["--rows", "twostage-stage1", "--seeds", "0", "--epochs", "1", "--size", "32"]
    words += ["--jobs", "2", "--device", "cpu", "--data", str(tmp_path)]
    assert main(["reproduce", "imagenette", *words]) == 0
    assert "2 of 2 runs are missing" in capsys.readouterr().out
    lines = (tmp_path / "results" / "imagenette.jsonl").read_text().splitlines()
    rows = [r["row"] for r in map(json.loads, lines) if r["metric"] == "top1"]
    assert rows == ["resnet34-teacher", "twostage-stage1"]


@pytest.mark.parametrize("served", [False, True])
def test_gpu_without_mps_is_told_about_it(served, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(reproducing, "choose_device", lambda name: torch.device("cuda"))
    monkeypatch.setattr(reproducing, "mps_runs", lambda: served)
    monkeypatch.setattr(reproducing.Crew, "work", lambda self: 0)
    assert main(["reproduce", "digits", *ROWS, "--jobs", "2"]) == 0
    assert ("nvidia-cuda-mps-control -d" in capsys.readouterr().out) is not served


@pytest.fixture
def interrupted(tmp_path):
    """Return a function that begins two long runs, and sends a signal when both are at work."""
    paths = [tmp_path / "runs" / f"digits-{row}-5000ep-seed0" for row in ROWS[1:]]

    def interrupt(number):
        words = [*ROWS, "cnn-recu", "--seeds", "0", "--epochs", "5000", "--jobs", "2"]
        process = subprocess.Popen(
            [sys.executable, "-m", "surge", "reproduce", "digits", "--device", "cpu", *words],
            cwd=tmp_path,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )
        deadline = time.monotonic() + TIMEOUT
        try:
            while not all((p / "metrics.jsonl").exists() and len(epochs(p)) > 1 for p in paths):
                assert process.poll() is None and time.monotonic() < deadline
                time.sleep(0.05)
            if number == signal.SIGINT:
                os.killpg(process.pid, number)  # what Ctrl-C does: everybody in front hears it
            else:
                process.send_signal(number)
            out, _ = process.communicate(timeout=TIMEOUT)
        finally:
            check_nothing_is_left(process.pid)
        return process.returncode, out, paths

    return interrupt


def check_nothing_is_lost(paths):
    for path in paths:
        assert final(path)["epoch"] == len(epochs(path))
        assert "Traceback" not in (path / "log.txt").read_text()


@pytest.mark.parametrize(
    "number", [signal.SIGINT, pytest.param(signal.SIGTERM, marks=pytest.mark.slow)]
)
def test_signal_stops_all_runs_with_a_checkpoint(number, interrupted, tmp_path):
    code, out, paths = interrupted(number)
    assert code == 128 + number
    assert "stopping: runs end their epoch" in out
    assert out.count("Continue with: surge train --resume") == 2
    assert "Traceback" not in out
    check_nothing_is_lost(paths)
    assert not (tmp_path / "runs" / "digits-cnn-recu-5000ep-seed0").exists()


@pytest.mark.slow
def test_runs_whose_command_was_killed_stop_with_a_checkpoint(interrupted):
    code, _, paths = interrupted(signal.SIGKILL)
    assert code == -signal.SIGKILL
    check_nothing_is_lost(paths)


def check_nothing_is_left(group):
    """See that all processes of the group end soon; else end them, and fail."""
    deadline = time.monotonic() + 20
    while time.monotonic() < deadline:
        try:
            os.killpg(group, 0)
        except ProcessLookupError:
            return
        time.sleep(0.05)
    os.killpg(group, signal.SIGKILL)
    pytest.fail("processes were left behind")
