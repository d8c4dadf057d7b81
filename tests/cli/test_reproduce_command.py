"""``surge reproduce``: fills a table, a few runs at a time."""

import json
from pathlib import Path

import pytest
import torch

from surge.cli import _reproducing as reproducing
from surge.cli import main
from surge.cli._planning import OVERRIDES
from surge.study import results, sweeps
from surge.train.checkpoint import found
from surge.train.run import RunFolder
from surge.train.watch import DivergedError
from tests.nets import assert_same_tensors
from tests.train.small import digits

ROWS = ("--rows", "cnn-bnn", "cnn-bnn-surge")


@pytest.fixture
def reproduce(tmp_path, monkeypatch, capsys):
    """Run the command on 64 digits in an empty folder; return exit code, output and errors."""
    monkeypatch.chdir(tmp_path)
    sets = (digits("train", 64), digits("test", 40))
    monkeypatch.setattr(reproducing, "load_sets", lambda *_, **__: sets)

    def run(*words):
        code = main(["reproduce", "digits", "--device", "cpu", "--epochs", "2", *words])
        shown = capsys.readouterr()
        return code, shown.out, shown.err

    return run


def stored(tmp_path):
    path = tmp_path / "results" / "digits.jsonl"
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def folder(tmp_path, row, seed=0):
    return tmp_path / "runs" / f"digits-{row}-2ep-seed{seed}"


def final(path):
    newest, *_ = found(path / "checkpoints")
    return torch.load(newest, weights_only=True)["model"]


def test_reproduce_runs_stores_and_prints(reproduce, tmp_path):
    code, out, _ = reproduce(*ROWS, "--seeds", "0", "1")
    assert code == 0
    assert "4 of 4 runs are missing" in out
    runs = [(r["seed"], r["row"]) for r in stored(tmp_path)]
    assert runs == [(0, "cnn-bnn"), (0, "cnn-bnn-surge"), (1, "cnn-bnn"), (1, "cnn-bnn-surge")]
    assert all(r["overrides"] == {"epochs": 2} for r in stored(tmp_path))
    lasts = {(r["row"], r["seed"]): r["last"] for r in stored(tmp_path)}
    mean = sum(lasts["cnn-bnn-surge", seed] - lasts["cnn-bnn", seed] for seed in (0, 1)) / 2
    line = next(line for line in out.splitlines() if line.startswith("| cnn-bnn-surge | 2 |"))
    assert f"{mean:+.2f} [" in line and "(2 pairs)" in line


def test_runs_side_by_side_are_what_each_is_alone(reproduce, tmp_path):
    reproduce(*ROWS, "--seeds", "0", "1")
    alone = {(r["seed"], r["row"]): r["last"] for r in stored(tmp_path)}
    words = ("--runs", "others", "--results", "found", "--together", "3")
    code, out, _ = reproduce(*ROWS, "--seeds", "0", "1", *words)
    assert code == 0 and "  cnn-bnn-surge 1" in out
    lines = (tmp_path / "found" / "digits.jsonl").read_text().splitlines()
    together = {(r["seed"], r["row"]): r["last"] for r in map(json.loads, lines)}
    assert [json.loads(line)["side_by_side"] for line in lines] == [3, 3, 3, 1]
    assert {r["side_by_side"] for r in stored(tmp_path)} == {1}
    assert together == alone
    for seed, row in alone:
        name = folder(tmp_path, row, seed).name
        assert_same_tensors(final(tmp_path / "others" / name), final(tmp_path / "runs" / name))


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (("--together", "0"), "must be at least 1"),
        (("--jobs", "0"), "--jobs 0 must be at least 1"),
        (("--jobs", "-2"), "--jobs -2 must be at least 1"),
        (("--jobs", "2", "--together", "2"), "leave one of them out"),
        (("--jobs", "2", "--captured", "True"), "--captured needs a CUDA GPU"),
    ],
)
def test_runs_that_must_be_alone(reproduce, words, expected):
    code, _, err = reproduce(*words)
    assert code == 2 and expected in err


def test_runs_that_draw_in_their_steps_must_be_alone(reproduce, monkeypatch):
    monkeypatch.setattr("surge.cli._reproducing.draws_in_steps", lambda recipe: True)
    code, _, err = reproduce(*ROWS, "--together", "2")
    assert code == 2 and "draws random numbers" in err


def test_reproduce_does_nothing_twice(reproduce, tmp_path):
    reproduce(*ROWS, "--seeds", "0")
    before = stored(tmp_path)
    code, out, _ = reproduce(*ROWS, *ROWS[1:], "--seeds", "0", "0")
    assert code == 0
    assert "0 of 2 runs are missing" in out
    assert stored(tmp_path) == before


def test_stored_run_says_what_arrived_of_the_auxiliary_gradient(reproduce, tmp_path):
    reproduce(*ROWS, "--seeds", "0")
    found = {result["row"]: result["delivered"] for result in stored(tmp_path)}
    assert found["cnn-bnn"] is None and 0 < found["cnn-bnn-surge"] < 0.02
    rows = (tmp_path / "runs" / "digits-cnn-bnn-surge-2ep-seed0" / "metrics.jsonl").read_text()
    doses = [json.loads(row)["delivered"] for row in rows.splitlines()]
    assert found["cnn-bnn-surge"] == pytest.approx(sum(doses) / len(doses), abs=1e-6)


def test_fewer_tests_change_nothing_but_the_tests(reproduce, tmp_path):
    reproduce(*ROWS, "--seeds", "0", "--runs", "every")
    every = {result["row"]: result for result in stored(tmp_path)}
    reproduce(*ROWS, "--seeds", "0", "--test-epochs", "2", "--results", "few")
    lines = (tmp_path / "few" / "digits.jsonl").read_text().splitlines()
    for result in map(json.loads, lines):
        assert result["last"] == result["best"] == every[result["row"]]["last"]
    assert_same_tensors(
        final(folder(tmp_path, "cnn-bnn-surge")),
        final(tmp_path / "every" / "digits-cnn-bnn-surge-2ep-seed0"),
    )
    few = (folder(tmp_path, "cnn-bnn") / "metrics.jsonl").read_text().splitlines()
    assert ["test_top1" in json.loads(line) for line in few] == [False, True]
    _, out, _ = reproduce("--table-only", "--results", "few")
    assert "test_epochs" not in out and "| cnn-bnn | 2 | - | open |" not in out


def test_table_only_trains_nothing(reproduce, tmp_path):
    code, out, _ = reproduce(*ROWS, "--table-only")
    assert code == 0
    assert "| cnn-bnn | 2 | - | open | open | 0 | - |" in out
    assert not (tmp_path / "runs").exists()


def test_all_rows_are_the_default(reproduce):
    _, out, _ = reproduce("--table-only")
    for row in ("cnn-float", "cnn-bnn", "cnn-bnn-surge", "cnn-recu", "cnn-recu-surge"):
        assert f"| {row} |" in out


def test_a_run_that_is_known_to_be_too_long_is_named_with_its_time(reproduce, tmp_path):
    reproduce(*ROWS[:2], "--seeds", "0")
    where = tmp_path / "results" / "digits.jsonl"
    line = json.loads(where.read_text())
    where.write_text(json.dumps({**line, "seconds": 400.0}) + "\n")
    code, out, _ = reproduce(*ROWS[:2], "--seeds", "1", "--budget", "60s")
    row = ROWS[1]
    assert code == 0 and f"too short for them (as stored: {row} 400 s)" in out
    assert not folder(tmp_path, row, 1).exists()


def test_budget_stops_and_the_next_call_goes_on(reproduce, tmp_path):
    reproduce(*ROWS, "--seeds", "0", "--runs", "whole", "--results", "whole")
    code, out, _ = reproduce(*ROWS, "--seeds", "0", "--budget", "0.001s")
    assert code == 0 and "2 left for another call" in out
    assert stored(tmp_path) == []
    calls = 0
    while len(stored(tmp_path)) < 2:
        calls += 1
        assert calls < 6
        reproduce(*ROWS, "--seeds", "0", "--budget", "0.01s")
    for row in ROWS[1:]:
        name = f"digits-{row}-2ep-seed0"
        assert_same_tensors(final(tmp_path / "runs" / name), final(tmp_path / "whole" / name))


def test_begun_run_keeps_the_overrides_it_was_begun_with(reproduce, tmp_path):
    words = ("--rows", "cnn-bnn", "--seeds", "0")
    reproduce(*words)
    path = folder(tmp_path, "cnn-bnn")
    environment = json.loads((path / "env.json").read_text())
    assert environment["overrides"] == {"epochs": 2}
    environment["overrides"] = {"epochs": 2, "precision": "fp32"}
    (path / "env.json").write_text(json.dumps(environment))
    (tmp_path / "results" / "digits.jsonl").unlink()
    code, out, _ = reproduce(*words)
    assert code == 0
    assert "continuing after epoch 2" in out
    (line,) = stored(tmp_path)
    assert line["overrides"] == {"epochs": 2, "precision": "fp32"}


def test_run_killed_before_its_first_checkpoint_starts_anew(reproduce, tmp_path):
    words = ("--rows", "cnn-bnn", "--seeds", "0")
    reproduce(*words)
    path = folder(tmp_path, "cnn-bnn")
    whole = final(path)
    for file in found(path / "checkpoints"):
        file.unlink()
    (path / "summary.txt").unlink()
    (tmp_path / "results" / "digits.jsonl").unlink()
    assert len(RunFolder(path).metrics()) == 2
    code, out, _ = reproduce(*words)
    assert code == 0
    assert "continuing" not in out
    assert_same_tensors(final(path), whole)
    assert [row["epoch"] for row in RunFolder(path).metrics()] == [0, 1]


def test_begun_run_with_other_settings_is_refused(reproduce, tmp_path):
    words = ("--rows", "cnn-bnn", "--seeds", "0")
    reproduce(*words)
    path = folder(tmp_path, "cnn-bnn")
    config = path / "config.yaml"
    config.write_text(config.read_text().replace("lr: 0.05", "lr: 0.5"))
    (tmp_path / "results" / "digits.jsonl").unlink()
    code, _, err = reproduce(*words)
    assert code == 2
    assert "other settings than the recipe has now" in err
    assert f"surge train --resume {path.relative_to(tmp_path)}" in err


@pytest.mark.parametrize("together", ["1", "2"])
def test_diverged_run_does_not_stop_the_others(reproduce, tmp_path, monkeypatch, together):
    real = reproducing.prepare_in

    def diverge():
        raise DivergedError("Training diverged in epoch 0 of cnn-bnn.")

    def prepare_in(where, recipe, *args, **kwargs):
        return diverge if recipe.row == "cnn-bnn" else real(where, recipe, *args, **kwargs)

    monkeypatch.setattr(reproducing, "prepare_in", prepare_in)
    code, out, _ = reproduce(*ROWS, "--seeds", "0", "--together", together)
    assert code == 1
    assert "Training diverged in epoch 0 of cnn-bnn." in out
    assert [r["row"] for r in stored(tmp_path)] == ["cnn-bnn-surge"]


def test_path_of_the_steps_can_be_chosen(reproduce):
    _, out, _ = reproduce("--rows", "cnn-bnn", "--seeds", "0", "--compiled", "False")
    assert "steps eager (--compiled False, no GPU is used)" in out.replace("\n", " ")


def test_variant_rows_can_be_asked_for(reproduce):
    _, out, _ = reproduce("--rows", "cnn-recu-surge-tied", "--table-only")
    assert "| cnn-recu-surge-tied | 2 | - | open |" in out


def test_sweep_of_numbers_makes_both_curves(reproduce, tmp_path):
    words = ("--rows", "cnn-recu", "cnn-recu-surge", "--seeds", "0")
    code, out, _ = reproduce(*words, "--eta", "0.0001", "1", "--fixed-scale", "0.001")
    assert code == 0 and "5 of 5 runs are missing" in out
    assert "| cnn-recu-surge-eta0.0001 | 2 |" in out
    assert (tmp_path / "runs" / "digits-cnn-recu-surge-fixed0.001-2ep-seed0").is_dir()
    held = results.read(tmp_path / "results", "digits")
    assert all(r.overrides == {"epochs": 2} for r in held)
    (eta,) = sweeps.curves(held, "eta").values()
    assert set(eta.points) == {1e-4, 0.01, 1.0} and set(eta.references) == {sweeps.WITHOUT}
    (fixed,) = sweeps.curves(held, "fixed_scale").values()
    assert set(fixed.points) == {0.001} and set(fixed.references) == {sweeps.AGS, sweeps.WITHOUT}
    named = (*words[:3], "cnn-recu-surge-eta1", "--seeds", "0")
    assert "0 of 3 runs are missing" in reproduce(*named)[1]


def test_scopes_can_be_compared_at_equal_doses(reproduce, tmp_path):
    rows = [f"cnn-recu-surge{v}" for v in ("", "-clipped", "-delivered", "-clipped-delivered")]
    assert reproduce("--rows", *rows, "cnn-recu-surge-unclipped", "--seeds", "0")[0] == 0
    doses = {result["row"]: result["delivered"] for result in stored(tmp_path)}
    lost, clipped, *equal = doses.values()
    assert clipped < 0.75 * lost and lost < 0.9 * min(equal)
    assert max(equal) < 1.15 * min(equal)


@pytest.mark.parametrize(
    "words, expected",
    [
        (("--rows", "cnn-recu", "--eta", "0.1"), "--eta is for rows with SURGE"),
        (("--each", "60s"), "--each and --epochs both say how long a run is"),
        (("--rows", "cnn-reku"), 'There is no recipe "digits-cnn-reku". Did you mean'),
        (("--budget", "x"), '--budget "x" is not a time'),
        (("--captured", "True"), "--captured needs a CUDA GPU"),
    ],
)
def test_mistakes_are_one_line(reproduce, words, expected):
    code, _, err = reproduce(*words)
    assert code == 2
    assert expected in err
    assert err.count("\n") == 1


def test_unknown_table_names_the_near_miss(capsys):
    assert main(["reproduce", "digit"]) == 2
    assert 'no table "digit". Did you mean "digits"?' in capsys.readouterr().err


def test_changes_that_reproduce_makes_are_fields_of_its_command():
    from surge.cli.reproduce import ReproduceCommand

    assert set(OVERRIDES) <= set(ReproduceCommand.__dataclass_fields__)


def test_stored_rows_of_glue_are_those_that_were_asked_for(capsys):
    where = Path(__file__).parents[2] / "results"
    words = ["reproduce", "glue", "--table-only", "--results", str(where), "--rows"]
    assert main([*words, "mrpc-bit"]) == 0
    rows = [line for line in capsys.readouterr().out.splitlines() if line.startswith("| mrpc")]
    assert rows and all(line.startswith("| mrpc-bit |") for line in rows)
    assert any("| f1 |" in line for line in rows)
    assert main([*words, "mrpc-bitt"]) == 2
    assert 'Did you mean "glue-mrpc-bit"?' in capsys.readouterr().err


def test_several_processes_are_refused_and_told_what_to_do(reproduce, tmp_path, monkeypatch):
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "2")
    code, _, err = reproduce(*ROWS, "--seeds", "0")
    assert code == 2
    assert "torchrun ... -m surge train digits-ROW --results results" in err
    assert not (tmp_path / "runs").exists()


def test_workers_for_a_table_without_files_are_refused(reproduce):
    code, _, err = reproduce(*ROWS, "--workers", "2")
    assert code == 2 and "--workers changes nothing" in err


@pytest.mark.parametrize("option", ["--results", "--runs"])
def test_a_place_that_takes_no_files_is_refused_before_the_first_run(
    reproduce, tmp_path, read_only, option
):
    (tmp_path / "ro").mkdir()
    read_only(tmp_path / "ro")
    code, out, err = reproduce(*ROWS, "--seeds", "0", option, "ro")
    assert (code, out) == (2, "") and f"{option} ro: nothing can be written in" in err
    assert not (tmp_path / "runs").exists()


def test_a_full_table_is_printed_from_a_place_that_takes_no_files(reproduce, tmp_path, read_only):
    reproduce(*ROWS, "--seeds", "0")
    read_only(tmp_path / "results")
    assert reproduce(*ROWS, "--seeds", "0")[0] == 0
    assert reproduce(*ROWS, "--table-only")[0] == 0
