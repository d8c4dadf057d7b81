"""Ctrl-C in the middle of training: a checkpoint, a way to go on, and nothing lost."""

import json
import os
import signal
import threading

import pytest
from rich.console import Console

from surge.cli import _training, main
from surge.cli._stopping import collected, stoppable
from surge.train.checkpoint import epochs_done

QUICK = ("--limit", "64", "--device", "cpu", "--results", "results")


@pytest.fixture(autouse=True)
def listening():
    """Python does not hear Ctrl-C where whoever started the tests ignores it, as nohup does."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.fixture
def interrupt(tmp_path, monkeypatch):
    """Press Ctrl-C when so many epochs of a run are shown."""
    monkeypatch.chdir(tmp_path)
    real = _training.epoch_lines

    def after(epochs):
        def lines(*args):
            show = real(*args)

            def shown(row):
                if row["epoch"] + 1 == epochs:
                    os.kill(os.getpid(), signal.SIGINT)
                return show(row)

            return shown

        monkeypatch.setattr(_training, "epoch_lines", lines)

    yield after
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def epochs(path):
    lines = (path / "metrics.jsonl").read_text().splitlines()
    return [json.loads(line)["epoch"] for line in lines]


def test_interrupted_run_keeps_all_its_epochs_and_goes_on(interrupt, tmp_path, capsys):
    interrupt(after := 2)
    words = ("train", "digits-cnn-recu-surge", "--epochs", "4", "--out", "my run")
    assert main([*words, *QUICK]) == 130
    out, err = capsys.readouterr()
    assert "once more ends it at once" in out and "interrupted" in err
    assert "Stopped after epoch 2 of 4. Continue with: surge train --resume 'my run'" in out
    folder = tmp_path / "my run"
    assert epochs_done(folder / "checkpoints") == after and epochs(folder) == [0, 1]
    interrupt(None)
    assert main(["train", "--resume", "my run", "--device", "cpu"]) == 0
    assert epochs(folder) == [0, 1, 2, 3]


def test_interrupted_in_its_last_epoch_a_run_is_finished(interrupt, tmp_path):
    interrupt(2)
    assert main(["train", "digits-cnn-bnn", "--epochs", "2", "--out", "run", *QUICK]) == 0
    assert (tmp_path / "run" / "summary.txt").exists()


def test_interrupted_table_begins_no_further_run(interrupt, tmp_path):
    interrupt(1)
    words = ("reproduce", "digits", "--rows", "cnn-bnn", "cnn-recu", "--seeds", "0")
    options = ("--epochs", "2", "--device", "cpu", "--results", "results")
    assert main([*words, *options]) == 130
    runs = [path.name for path in (tmp_path / "runs").iterdir()]
    assert runs == ["digits-cnn-bnn-2ep-seed0"]
    assert epochs_done(tmp_path / "runs" / runs[0] / "checkpoints") == 1
    interrupt(None)
    assert main([*words, *options]) == 0
    assert len((tmp_path / "results" / "digits.jsonl").read_text().splitlines()) == 2


def test_table_whose_last_run_ends_meanwhile_is_whole(interrupt, tmp_path):
    interrupt(2)
    words = ("reproduce", "digits", "--rows", "cnn-bnn", "--seeds", "0", "--epochs", "2")
    assert main([*words, "--device", "cpu", "--results", "results"]) == 0
    assert len((tmp_path / "results" / "digits.jsonl").read_text().splitlines()) == 1


def test_second_signal_ends_at_once():
    with stoppable(Console(quiet=True)) as asked:
        assert not asked()
        os.kill(os.getpid(), signal.SIGINT)
        assert asked()
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGINT)


def test_signals_are_collected_and_given_back():
    before = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]
    with collected() as caught:
        os.kill(os.getpid(), signal.SIGTERM)
        os.kill(os.getpid(), signal.SIGINT)
    assert caught == [signal.SIGTERM, signal.SIGINT]
    assert [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)] == before


def test_threads_leave_signals_alone():
    seen = []

    def ask():
        with stoppable(Console(quiet=True)) as asked:
            seen.append((asked(), signal.getsignal(signal.SIGINT)))

    thread = threading.Thread(target=ask)
    thread.start()
    thread.join()
    assert seen == [(False, signal.default_int_handler)]
