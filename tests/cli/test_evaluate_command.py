"""``surge evaluate``: a finished run, class by class."""

import csv
import json
import sys

import pytest
import torch

from surge.cli import main
from surge.data import load_digits
from surge.recipes import get_recipe
from surge.study import confusion
from surge.train.checkpoint import found
from surge.train.evaluate import Evaluation, evaluate_run
from surge.train.run import RunFolder

CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A trained digits run."""
    folder = tmp_path_factory.mktemp("evaluate")
    words = ["train", "digits-cnn-recu-surge", "--epochs", "3", "--device", "cpu"]
    words += ["--out", str(folder / "run"), "--results", str(folder / "results")]
    assert main([*words, "--save-every", "0"]) == 0
    return folder / "run"


def last_row(run):
    return json.loads((run / "metrics.jsonl").read_text().splitlines()[-1])


def test_evaluate_prints_and_draws(run, capsys):
    assert main(["evaluate", str(run), "--device", "cpu"]) == 0
    out = capsys.readouterr().out
    assert f"top-1 {last_row(run)['test_top1']:.2f} % on 359 images (digits, test set)" in out
    assert "after epoch 3 of 3" in out
    for digit in range(10):
        assert f"  {digit} " in out
    picture = run / "figures" / "confusion.png"
    assert picture.read_bytes().startswith(b"\x89PNG")
    assert f"wrote {picture}" in out


def test_table_of_the_picture_adds_up(run):
    main(["evaluate", str(run), "--device", "cpu"])
    with (run / "figures" / "confusion.csv").open() as file:
        rows = list(csv.DictReader(file))
    counts = torch.tensor([[int(row[str(digit)]) for digit in range(10)] for row in rows])
    labels = load_digits("test").labels
    assert torch.equal(counts.sum(1), torch.bincount(labels, minlength=10))
    top1 = 100 * float(counts.trace()) / len(labels)
    assert top1 == pytest.approx(last_row(run)["test_top1"])


def test_evaluation_of_known_counts():
    counts = torch.tensor([[3, 1, 0], [0, 4, 0], [0, 0, 0]])
    found = Evaluation(get_recipe("digits-cnn-bnn"), 0, 1, ("a", "b", "c"), counts)
    assert found.top1 == pytest.approx(87.5)
    assert found.per_class() == [
        {"class": "a", "images": 4, "top1": 75.0, "mistaken for": "b (1)"},
        {"class": "b", "images": 4, "top1": 100.0, "mistaken for": None},
        {"class": "c", "images": 0, "top1": None, "mistaken for": None},
    ]
    assert found.rows()[0] == {"true": "a", "a": 3, "b": 1, "c": 0}


def test_evaluate_uses_the_newest_good_checkpoint(run, tmp_path, capsys):
    newest, older = found(run / "checkpoints")
    copy = tmp_path / "run"
    (copy / "checkpoints").mkdir(parents=True)
    for name in ("config.yaml", "env.json"):
        (copy / name).write_bytes((run / name).read_bytes())
    (copy / "checkpoints" / newest.name).write_bytes(newest.read_bytes()[:500])
    (copy / "checkpoints" / older.name).write_bytes(older.read_bytes())
    assert main(["evaluate", str(copy), "--device", "cpu"]) == 0
    out = capsys.readouterr().out
    assert f"{newest.name} is damaged" in out
    assert "after epoch 2 of 3" in out


def test_evaluation_leaves_the_run_alone(run):
    before = {p: p.read_bytes() for p in run.rglob("*") if p.is_file() and "figures" not in p.parts}
    evaluate_run(run, run, CPU)
    after = {p: p.read_bytes() for p in run.rglob("*") if p.is_file() and "figures" not in p.parts}
    assert after == before


def test_what_is_no_run_is_one_line(tmp_path, capsys):
    assert main(["evaluate", str(tmp_path)]) == 2
    err = capsys.readouterr().err
    assert f"{tmp_path} is not the folder of a run: config.yaml is missing" in err
    assert err.count("\n") == 1


def test_run_without_checkpoint_is_one_line(tmp_path, capsys):
    RunFolder.create(tmp_path / "run", get_recipe("digits-cnn-bnn"), {"seed": 0})
    assert main(["evaluate", str(tmp_path / "run")]) == 2
    err = capsys.readouterr().err
    assert "holds no checkpoint yet. Train it with: surge train --resume" in err


def test_missing_data_is_one_line(tmp_path, capsys):
    recipe = get_recipe("cifar10-resnet20-recu")
    folder = RunFolder.create(tmp_path / "run", recipe, {"seed": 0})
    folder.checkpoints.mkdir()
    (folder.checkpoints / "epoch-00001.pt").write_bytes(b"x")
    assert main(["evaluate", str(tmp_path / "run"), "--data", str(tmp_path)]) == 2
    assert "CIFAR-10 is not complete in" in capsys.readouterr().err


def test_picture_has_a_cell_for_every_pair_that_occurs():
    counts = torch.tensor([[9, 1], [0, 5]])
    figure = confusion.draw(("cat", "dog"), counts, title="run", facts="top-1 93 %")
    (axes,) = figure.axes
    texts = {text.get_text() for text in axes.texts}
    assert {"9", "1", "5"} <= texts
    assert "0" not in texts
    assert [label.get_text() for label in axes.get_xticklabels()] == ["cat", "dog"]
    assert axes.get_ylabel() == "true"


def test_evaluate_without_matplotlib_is_said_before_the_work(run, capsys, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    assert main(["evaluate", str(run), "--device", "cpu"]) == 2
    captured = capsys.readouterr()
    assert "pip install 'surge-bnn[demo]'" in captured.err and captured.out == ""
