"""``surge reproduce glue --each``: every student trains for the same time, whatever its steps."""

import json
from dataclasses import replace

import pytest

from surge.cli import _reproducing, _training, main
from surge.study.results import Result
from surge.train import budget
from surge.train.run import RunFolder
from tests.berts import save_tiny, write_task

PAIR = ("mrpc-bit", "mrpc-bit-surge")
STEPS = {"mrpc-bit": 7, "mrpc-bit-surge": 5}
"""What a made-up trial finds; an epoch of 16 pairs has 2 steps."""


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A folder with a tiny BERT, a task and a trained teacher."""
    folder = tmp_path_factory.mktemp("glue")
    save_tiny(folder / "bert")
    write_task(folder, "mrpc", {"train": 16, "dev": 8})
    words = [*COMMON, "--rows", "mrpc-teacher"]
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        assert main([*words, "--runs", str(folder / "taught"), "--results", "taught"]) == 0
    return folder


COMMON = ("reproduce", "glue", "--model", "bert", "--data", ".", "--device", "cpu", "--seeds", "0")


@pytest.fixture
def reproduce(tmp_path, place, monkeypatch, capsys):
    """Run the command with a teacher at hand; return exit code, output and errors."""
    monkeypatch.chdir(place)
    (tmp_path / "runs").mkdir()
    for path in (place / "taught").glob("glue-*"):
        (tmp_path / "runs" / path.name).symlink_to(path)
    (tmp_path / "results").mkdir()
    stored = (place / "taught" / "glue.jsonl").read_text()
    (tmp_path / "results" / "glue.jsonl").write_text(stored)
    places = ["--runs", str(tmp_path / "runs"), "--results", str(tmp_path / "results")]

    def run(*words):
        code = main([*COMMON, *places, "--rows", *PAIR, *words])
        shown = capsys.readouterr()
        return code, shown.out, shown.err

    return run


@pytest.fixture
def trials(monkeypatch):
    """Replace trials by numbers; return what was fitted to how many seconds."""
    done = []

    def fitted(recipe, sets, seconds, **_):
        done.append((recipe.row, seconds))
        steps = STEPS[recipe.row]
        return replace(recipe, train=replace(recipe.train, steps=steps, epochs=-(-steps // 2)))

    monkeypatch.setattr(_training, "fitted", fitted)
    return done


def stored(folder):
    lines = map(json.loads, (folder / "results" / "glue.jsonl").read_text().splitlines())
    kept = [Result(**line) for line in lines if line["metric"] == "accuracy"]
    return [r for r in kept if r.row in PAIR]


def test_both_arms_get_the_same_time_and_each_its_own_steps(reproduce, tmp_path, trials):
    code, out, _ = reproduce("--each", "0.1m")
    assert code == 0 and "2 of 3 runs are missing" in out  # the teacher is there, trained in full
    assert trials == [("mrpc-bit", 6.0), ("mrpc-bit-surge", 6.0)]
    for result in stored(tmp_path):
        assert result.overrides == {"budget": "6s"} and result.setting == "budget=6s"
        assert (result.steps, result.epochs) == (STEPS[result.row], -(-STEPS[result.row] // 2))
        folder, recipe, environment = RunFolder.open(
            tmp_path / "runs" / f"glue-{result.row}-6s-seed0"
        )
        assert recipe.train.steps == result.steps and len(folder.metrics()) == result.epochs
        assert environment["overrides"] == {"budget": "6s"}
    plain, surged = stored(tmp_path)
    line = next(line for line in out.splitlines() if line.startswith("| mrpc-bit-surge | mrpc, "))
    difference = f"{surged.last - plain.last:+.2f} (1 pair) |"
    assert "| 6s | 5 |" in line and line.endswith(difference)
    assert "| mrpc-bit | 20 |" not in out  # it was not run for its own epochs


def test_runs_of_other_length_and_time_do_not_count(reproduce, tmp_path, trials):
    reproduce("--each", "6s")
    assert "0 of 3 runs are missing" in reproduce("--each", "6")[1]
    assert "2 of 3 runs are missing" in reproduce("--each", "7s", "--budget", "0s")[1]
    code, out, _ = reproduce("--epochs", "1")
    assert code == 0 and "2 of 3 runs are missing" in out
    assert [(r.setting, r.epochs) for r in stored(tmp_path)[2:]] == [("", 1)] * 2
    assert "2 of 3 runs are missing" in reproduce("--each", "8s", "--budget", "0s")[1]
    assert len(trials) == 2


def test_stopped_run_goes_on_with_the_steps_it_was_fitted_with(
    reproduce, tmp_path, trials, monkeypatch
):
    """A deadline that is over once the first epoch is done."""
    real = _reproducing.LoopOptions
    with monkeypatch.context() as patch:
        patch.setattr(
            _reproducing, "LoopOptions", lambda **given: real(**{**given, "deadline": 0.0})
        )
        code, out, _ = reproduce("--each", "6s", "--rows", "mrpc-bit")
    path = tmp_path / "runs" / "glue-mrpc-bit-6s-seed0"
    assert code == 0 and "Stopped after epoch 1 of 4" in out and stored(tmp_path) == []
    assert RunFolder(path).begun
    monkeypatch.setitem(STEPS, "mrpc-bit", 99)  # a busy machine would find another number
    code, out, _ = reproduce("--each", "6s", "--rows", "mrpc-bit")
    assert code == 0 and "continuing after epoch 1" in out and len(trials) == 1
    (result,) = stored(tmp_path)
    assert (result.steps, result.epochs, result.overrides) == (7, 4, {"budget": "6s"})


def test_begun_run_with_other_settings_is_still_refused(reproduce, tmp_path, trials):
    reproduce("--each", "6s", "--rows", "mrpc-bit")
    config = tmp_path / "runs" / "glue-mrpc-bit-6s-seed0" / "config.yaml"
    config.write_text(config.read_text().replace("batch: 8", "batch: 4"))
    (tmp_path / "results" / "glue.jsonl").write_text("")
    code, _, err = reproduce("--each", "6s", "--rows", "mrpc-bit")
    assert code == 2 and "other settings than the recipe has now" in err


def test_steps_follow_from_what_a_trial_measures(reproduce, tmp_path, monkeypatch):
    monkeypatch.setattr(budget, "_measure", lambda *_: (0.5, 0.25))
    code, out, _ = reproduce("--each", "4s")
    assert code == 0
    # An epoch has two steps and a test: 2 * 0.5 + 0.25 s for two steps, of 0.98 * 4 s.
    assert {r.steps for r in stored(tmp_path)} == {6}
    assert "glue-mrpc-bit, seed 0: timing steps and a test, to fit 4s" in out


def test_runs_side_by_side_are_refused_in_one_line(reproduce, trials):
    code, _, err = reproduce("--each", "6s", "--jobs", "2")
    assert code == 2 and err.count("\n") == 1 and "leave --jobs and --together out" in err


def test_time_and_steps_are_shown_without_a_network(reproduce, tmp_path, trials, capsys):
    reproduce("--each", "6s")
    words = ["reproduce", "glue", "--table-only", "--results", str(tmp_path / "results")]
    assert main(words) == 0
    rows = [line for line in capsys.readouterr().out.splitlines() if "mrpc-bit |" in line]
    (timed,) = (row for row in rows if "| 6s |" in row)
    assert timed.startswith("| mrpc-bit | mrpc, dev set, bert | 6s | 7 |")
