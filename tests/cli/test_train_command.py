"""``surge train`` from the command line to the run folder."""

import errno
import json
import os
import sys
from dataclasses import replace

import pytest
import torch
import yaml

from surge.cli import _training, main
from surge.cli._training import choose_device, seconds_of
from surge.errors import ConfigError
from surge.recipes import get_recipe
from surge.train import loop
from surge.train.checkpoint import found, save
from surge.train.processes.neighbours import counted
from surge.train.run import RunFolder
from surge.train.task import check_batches
from tests.nets import assert_same_tensors

SHORT = ("--epochs", "2", "--limit", "64", "--device", "cpu", "--save-every", "0")


@pytest.fixture
def train(tmp_path, monkeypatch, capsys):
    """Run the command in an empty folder; return its exit code, what it printed, and errors."""
    monkeypatch.chdir(tmp_path)

    def run(*words):
        code = main(["train", *map(str, words)])
        shown = capsys.readouterr()
        return code, shown.out, shown.err

    return run


def one_line(err):
    assert err.startswith("error: ")
    assert err.count("\n") == 1
    return err


def final(path):
    newest, *_ = found(path / "checkpoints")
    return torch.load(newest, weights_only=True)["model"]


def test_train_writes_the_whole_run_folder(train, tmp_path):
    code, out, _ = train("digits-cnn-recu-surge", *SHORT, "--seed", "3")
    assert code == 0
    run = tmp_path / "runs" / "digits-cnn-recu-surge-seed3"
    names = {path.name for path in run.iterdir()}
    assert names == {
        "config.yaml",
        "env.json",
        "metrics.jsonl",
        "log.txt",
        "checkpoints",
        "summary.txt",
        "figures",
    }
    config = yaml.safe_load((run / "config.yaml").read_text())
    assert (config["train"]["epochs"], config["data"]["limit"]) == (2, 64)
    environment = json.loads((run / "env.json").read_text())
    assert (environment["seed"], environment["device"]) == (3, "cpu")
    assert environment["overrides"] == {"epochs": 2, "limit": 64}
    assert "steps eager (no GPU is used)" in out
    assert f"evaluate with: surge evaluate {run.relative_to(tmp_path)}" in out
    assert f"pack with: surge export {run.relative_to(tmp_path)}" in out
    summary = (run / "summary.txt").read_text()
    assert summary.startswith("digits-cnn-recu-surge seed 3: top1 ")
    assert "(last epoch)" in summary and "(best, epoch " in summary
    assert summary.strip() in out
    assert (run / "log.txt").read_text().count("\n") == 3


def test_train_stores_the_result(train, tmp_path):
    train("digits-cnn-bnn-surge", *SHORT, "--eta", "0.05", "--commit", "abc")
    (line,) = (tmp_path / "results" / "digits.jsonl").read_text().splitlines()
    stored = json.loads(line)
    assert (stored["row"], stored["seed"], stored["epochs"]) == ("cnn-bnn-surge", 0, 2)
    assert stored["overrides"] == {"epochs": 2, "eta": 0.05, "limit": 64}
    assert (stored["data"], stored["precision"]) == ("digits, test set, first 64", "fp32")
    rows = (tmp_path / "runs" / "digits-cnn-bnn-surge-seed0" / "metrics.jsonl").read_text()
    last = json.loads(rows.splitlines()[-1])
    assert stored["last"] == pytest.approx(last["test_top1"], abs=1e-4)
    assert stored["commit"] == "abc"


def test_commands_to_go_on_with_are_quoted(train, tmp_path):
    code, out, _ = train("digits-cnn-bnn", *SHORT, "--out", "a run")
    assert code == 0
    assert "surge evaluate 'a run'; pack with: surge export 'a run'" in out
    _, out, _ = train("digits-cnn-bnn", *SHORT, "--out", "b run", "--budget", "0.001s")
    assert "surge train --resume 'b run'" in out


def test_a_file_in_the_place_of_the_run_is_named(train, tmp_path):
    (tmp_path / "taken").write_text("mine")
    code, _, err = train("digits-cnn-bnn", *SHORT, "--out", "taken")
    assert code == 2 and f"--out taken: {tmp_path / 'taken'} is a file" in one_line(err)
    assert (tmp_path / "taken").read_text() == "mine"


def test_budget_stops_after_an_epoch_and_resume_goes_on(train, tmp_path):
    train("digits-cnn-recu-surge", *SHORT, "--out", "whole")
    code, out, _ = train("digits-cnn-recu-surge", *SHORT, "--out", "part", "--budget", "0.001s")
    assert code == 0
    assert "Stopped after epoch 1 of 2. Continue with: surge train --resume part" in out
    assert not (tmp_path / "part" / "summary.txt").exists()
    assert len((tmp_path / "results" / "digits.jsonl").read_text().splitlines()) == 1
    code, out, _ = train("--resume", "part", "--device", "cpu")
    assert code == 0
    assert "continuing after epoch 1" in out
    assert_same_tensors(final(tmp_path / "part"), final(tmp_path / "whole"))
    rows = (tmp_path / "part" / "metrics.jsonl").read_text().splitlines()
    assert [json.loads(row)["epoch"] for row in rows] == [0, 1]


def test_result_of_a_resumed_run_says_which_epochs_ran_other_code(train, tmp_path):
    train("digits-cnn-bnn", *SHORT, "--out", "run", "--budget", "0.001s", "--commit", "abc")
    train("--resume", "run", "--device", "cpu", "--commit", "def")
    stored = json.loads((tmp_path / "results" / "digits.jsonl").read_text())
    assert stored["commit"] == "abc, from epoch 2 on def"
    assert ", from" not in stored["hardware"] + stored["torch"] + stored["precision"]


def test_resumed_run_records_and_stores_as_it_was_told_at_first(train, tmp_path):
    told = ("--record", "--record-every", "1", "--results", "elsewhere")
    train("digits-cnn-recu-surge", *SHORT, "--out", "run", "--budget", "0.001s", *told)
    code, *_ = train("--resume", "run", "--device", "cpu")
    assert code == 0
    assert len((tmp_path / "run" / "probe.jsonl").read_text().splitlines()) == 2
    assert (tmp_path / "elsewhere" / "digits.jsonl").exists()
    assert not (tmp_path / "results").exists()


def test_resumed_run_finds_the_data_that_it_was_begun_with(train, tmp_path, monkeypatch):
    roots, real = [], _training.load_sets

    def load(spec, root, workers):
        roots.append(root)
        return real(spec, root, workers)

    monkeypatch.setattr(_training, "load_sets", load)
    train("digits-cnn-bnn", *SHORT, "--out", "run", "--data", "sets", "--budget", "0.001s")
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    for words in ((), ("--data", "/other")):
        assert train("--resume", tmp_path / "run", "--device", "cpu", *words)[0] == 0
    assert [str(root) for root in roots] == ["sets", str(tmp_path / "sets"), "/other"]


def test_result_says_how_many_runs_shared_the_gpu(train, tmp_path, monkeypatch):
    monkeypatch.setattr(_training, "place_of", lambda device: tmp_path / "gpu")
    with counted(tmp_path / "gpu"):  # as a run of another command
        code, out, _ = train("digits-cnn-recu", *SHORT)
    assert code == 0 and "(2 runs at once)" in out
    stored = json.loads((tmp_path / "results" / "digits.jsonl").read_text())
    assert stored["side_by_side"] == 2
    environment = json.loads((tmp_path / "runs" / "digits-cnn-recu-seed0" / "env.json").read_text())
    assert environment["side_by_side"] == 2


def test_results_that_cannot_be_stored_are_said_at_once(train, tmp_path):
    (tmp_path / "file").write_text("")
    code, _, err = train("digits-cnn-bnn", *SHORT, "--out", "run", "--results", "file")
    assert code == 2 and "--results file" in one_line(err)
    assert not (tmp_path / "run").exists()


def test_results_in_a_place_that_takes_no_files_are_refused_at_once(train, tmp_path, read_only):
    train("digits-cnn-bnn", *SHORT, "--out", "begun", "--results", "ro", "--budget", "0.001s")
    (tmp_path / "ro").mkdir()
    read_only(tmp_path / "ro")
    new = ("digits-cnn-bnn", *SHORT, "--out", "run", "--results", "ro")
    for words in (new, ("--resume", "begun")):
        code, out, err = train(*words)
        assert (code, out) == (2, "")
        assert f"--results ro: nothing can be written in {tmp_path / 'ro'}" in one_line(err)
    assert not (tmp_path / "run").exists()


def test_resume_of_a_finished_run_stores_nothing_twice(train, tmp_path):
    train("digits-cnn-bnn", *SHORT, "--out", "run")
    code, out, _ = train("--resume", "run", "--device", "cpu")
    assert code == 0
    assert "(last epoch)" in out
    assert len((tmp_path / "results" / "digits.jsonl").read_text().splitlines()) == 1


def test_resume_of_a_run_killed_before_its_first_checkpoint_starts_anew(train, tmp_path):
    train("digits-cnn-bnn", *SHORT, "--out", "whole")
    train("digits-cnn-bnn", *SHORT, "--out", "run")
    for path in found(tmp_path / "run" / "checkpoints"):
        path.unlink()
    code, out, _ = train("--resume", "run", "--device", "cpu")
    assert code == 0 and "no checkpoint was written yet: beginning again" in out
    assert_same_tensors(final(tmp_path / "run"), final(tmp_path / "whole"))
    rows = (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()
    assert [json.loads(row)["epoch"] for row in rows] == [0, 1]


def test_resume_passes_over_a_torn_checkpoint_and_says_so(train, tmp_path):
    train("digits-cnn-bnn", *SHORT, "--out", "run")
    newest, older = found(tmp_path / "run" / "checkpoints")
    newest.write_bytes(newest.read_bytes()[:1000])
    code, out, _ = train("--resume", "run", "--device", "cpu")
    assert code == 0
    assert f"{newest.name} is damaged" in out
    assert f"{older.name} is used instead" in out


def test_train_into_an_existing_run_names_resume(train):
    train("digits-cnn-bnn", *SHORT, "--budget", "0.001s")
    code, _, err = train("digits-cnn-bnn", *SHORT)
    assert code == 2
    assert "--resume runs/digits-cnn-bnn-seed0" in one_line(err)


def test_an_interrupted_run_says_how_to_go_on(train, monkeypatch):
    def interrupt(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(loop.Trainer, "run", interrupt)
    code, out, err = train("digits-cnn-bnn", *SHORT)
    assert code == 130 and "interrupted" in one_line(err)
    assert "Continue with: surge train --resume runs/digits-cnn-bnn-seed0" in out


def test_a_taken_folder_is_refused_before_data_are_read(train, tmp_path):
    recipe = get_recipe("cifar10-resnet20-recu")
    RunFolder.create(tmp_path / "run", recipe, {"seed": 0})
    code, _, err = train(recipe.name, "--out", "run", "--data", "nowhere", "--device", "cpu")
    assert code == 2
    assert "run holds a run already" in one_line(err)


@pytest.mark.parametrize(
    "words, expected",
    [
        ((), "Which recipe? Name one"),
        (("digits-cnn-reku",), 'Did you mean "digits-cnn-recu"?'),
        (("digits-cnn-recu-surge-tide",), 'no variant "tide". Did you mean "tied"?'),
        (("digits-cnn-recu", "--eta", "0.1"), "has no setting eta"),
        (("digits-cnn-recu", "--epochs", "0"), "epochs=0 must be at least 1"),
        (("digits-cnn-recu-surge", "--eta", "0"), "eta=0.0 must be a positive"),
        (("digits-cnn-recu", "--limit", "0"), "limit=0 must be at least 1"),
        (("digits-cnn-recu", "--budget", "soon"), '--budget "soon" is not a time'),
        (("digits-cnn-recu", "--device", "tpu9"), '--device "tpu9" is not known'),
        (("digits-cnn-recu", "--captured", "True", "--device", "cpu"), "--captured needs a CUDA"),
        (("--resume", "nowhere"), "nowhere is not the folder of a run: nothing is there"),
        (("digits-cnn-recu", "--save-every", "nan"), "save_every=nan must be 0 seconds or more"),
        (("digits-cnn-recu", "--save-steps", "0"), "save_steps=0 must be at least 1"),
        (("digits-cnn-recu", "--workers", "2"), "--workers changes nothing"),
        (("imagenet-onestage-reactnet", "--workers", "0"), "workers=0 must be at least 1"),
        (("digits-cnn-recu", "--lr", "nan"), "lr=nan must be positive"),
        (("digits-cnn-recu", "--seed", str(2**63)), "does not fit in 64 bits"),
    ],
)
def test_mistakes_are_one_line_and_exit_code_2_and_leave_no_folder(
    train, tmp_path, words, expected
):
    code, _, err = train(*words)
    assert code == 2
    assert expected in one_line(err)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    "words, expected",
    [
        (("digits-cnn-bnn",), "holds digits-cnn-recu, not digits-cnn-bnn"),
        (("--seed", "5"), "has seed 1, not 5"),
        (("--epochs", "9"), "drop --epochs"),
        (("--held-out",), "drop --held-out"),
        (("--out", "elsewhere"), "drop --out"),
    ],
)
def test_resume_refuses_what_would_change_the_run(train, tmp_path, words, expected):
    RunFolder.create(tmp_path / "run", get_recipe("digits-cnn-recu"), {"seed": 1})
    code, _, err = train("--resume", "run", *words)
    assert code == 2
    assert expected in one_line(err)


def test_resume_of_another_recipes_checkpoint_is_refused(train, tmp_path):
    train("digits-cnn-bnn", *SHORT, "--out", "run")
    save(tmp_path / "run" / "checkpoints", {"recipe": "digits-cnn-recu"}, 9)
    code, _, err = train("--resume", "run", "--device", "cpu")
    assert code == 2
    assert 'belongs to the recipe "digits-cnn-recu", not to "digits-cnn-bnn"' in one_line(err)


def test_divergence_is_one_line_that_names_the_layer(train, monkeypatch):
    monkeypatch.setattr(loop, "learning_rate", lambda spec, epoch: 1e30)
    code, _, err = train("digits-cnn-float", *SHORT)
    assert code == 2
    expected = "Training diverged in epoch 0 of digits-cnn-float: the output of"
    assert expected in one_line(err)
    assert "(epoch 0, test)" in err  # a single step was finite, what it left behind is not


def test_full_disk_is_one_line(train, tmp_path, monkeypatch):
    def full(*_):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    real = os.replace
    monkeypatch.setattr(
        os, "replace", lambda a, b: full() if str(b).endswith(".pt") else real(a, b)
    )
    code, _, err = train("digits-cnn-bnn", *SHORT)
    assert code == 2
    assert "No space left on device" in one_line(err)


def test_list_shows_every_recipe(train):
    code, out, _ = train("--list")
    assert code == 0
    for name in ("cifar10-resnet20-recu-surge", "digits-cnn-float", "88"):
        assert name in out


def test_tensorboard_events_hold_every_number(train, tmp_path):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    train("digits-cnn-recu-surge", *SHORT, "--out", "run", "--tensorboard")
    events = EventAccumulator(str(tmp_path / "run" / "tensorboard"))
    events.Reload()
    tags = set(events.Tags()["scalars"])
    assert {"train_loss", "test_top1", "lr", "flips", "scale", "injected", "delivered"} <= tags
    rows = (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()
    wanted = [(json.loads(row)["epoch"], json.loads(row)["train_loss"]) for row in rows]
    scalars = [(event.step, event.value) for event in events.Scalars("train_loss")]
    assert scalars == [(step, pytest.approx(value, rel=1e-6)) for step, value in wanted]


def test_tensorboard_of_a_resumed_run_shows_every_epoch_once(train, tmp_path):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    train("digits-cnn-bnn", *SHORT, "--out", "run", "--tensorboard")
    found(tmp_path / "run" / "checkpoints")[0].unlink()  # killed before it was written
    train("--resume", "run", "--device", "cpu")
    events = EventAccumulator(str(tmp_path / "run" / "tensorboard"))
    events.Reload()
    assert [event.step for event in events.Scalars("train_loss")] == [0, 1]


def test_missing_tensorboard_is_one_line_with_the_install_command(train, monkeypatch):
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", None)
    code, _, err = train("digits-cnn-bnn", *SHORT, "--tensorboard")
    assert code == 2
    assert "pip install 'surge-bnn[tracking]'" in one_line(err)


def test_held_out_tests_on_a_tenth_of_the_training_set(train, tmp_path):
    words = ("--epochs", "1", "--device", "cpu", "--out", "run")
    train("digits-cnn-bnn", *words, "--held-out")
    (line,) = (tmp_path / "results" / "digits.jsonl").read_text().splitlines()
    assert json.loads(line)["data"] == "digits, held out"


def test_seconds_of_budgets():
    assert [seconds_of(text) for text in ("90", "90s", "9m", "1.5h")] == [90, 90, 540, 5400]
    with pytest.raises(ConfigError):
        seconds_of("-5m")


def test_choose_device_without_a_name_takes_what_is_there(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert choose_device(None) == torch.device("cpu")
    with pytest.raises(ConfigError, match="torch sees no CUDA GPU"):
        choose_device("cuda")
    with pytest.raises(ConfigError, match="not supported"):
        choose_device("meta")


@pytest.mark.parametrize(
    "name, local, index",
    [(None, "3", 3), ("cuda", "3", 3), ("cuda", None, 0), ("cuda:1", None, 1), ("cuda:1", "3", 1)],
)
def test_chosen_gpu_has_an_index_and_is_the_current_one(monkeypatch, name, local, index):
    current = []
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 4)
    monkeypatch.setattr(torch.cuda, "set_device", current.append)
    monkeypatch.delenv("LOCAL_RANK", raising=False)
    if local is not None:
        monkeypatch.setenv("LOCAL_RANK", local)
    assert choose_device(name) == torch.device("cuda", index)
    assert current == [index]
    with pytest.raises(ConfigError, match="there is no GPU 7, torch sees 4"):
        choose_device("cuda:7")


@pytest.mark.parametrize(
    "words",
    [
        ["--limit", "65", "--batch", "64"],
        ["--limit", "1"],
        ["--limit", "67", "--batch", "64", "--accumulate", "2"],
    ],
)
def test_a_batch_of_one_image_is_refused_before_a_folder_is_made(words, tmp_path, capsys):
    out = tmp_path / "run"
    assert main(["train", "digits-cnn-recu", *words, "--epochs", "1", "--out", str(out)]) == 2
    assert "leave a batch with one image" in capsys.readouterr().err
    assert not out.exists()


def test_several_processes_have_batches_of_their_own():
    recipe = get_recipe("cifar10-resnet20-recu")
    small = replace(recipe, train=replace(recipe.train, batch=16, accumulate=4))
    with pytest.raises(ConfigError, match="leave a batch with one image"):
        check_batches(small, 25, ranks=2)  # the last 9 make 4 and 5
    check_batches(replace(small, train=replace(small.train, accumulate=1)), 25, ranks=2)
    synced = replace(small, train=replace(small.train, sync_norm=True))
    with pytest.raises(ConfigError, match="unequal numbers of parts in 2 processes"):
        check_batches(synced, 25, ranks=2)
    check_batches(synced, 24, ranks=2)
