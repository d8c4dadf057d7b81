"""``surge reproduce imagenette`` on a small tree: teacher, first stage, second stage, table."""

import json

import pytest

from surge.cli import _reproducing, main
from surge.recipes import get_recipe, overridden
from tests.data.trees import make_tree
from tests.train.photo_runs import narrow


@pytest.fixture
def tree(tmp_path):
    classes = [f"n{number}" for number in range(10)]
    return make_tree(tmp_path / "imagenette96", classes, train=2, val=1, size=(96, 96)).parent


def reproduce(tree, *words):
    places = ["--data", tree, "--runs", tree / "runs", "--results", tree / "results"]
    words = ["reproduce", "imagenette", *words, "--seeds", 0, "--epochs", 1, "--size", 32]
    with narrow():
        return main([str(word) for word in [*words, "--device", "cpu", *places]])


def test_second_stage_brings_its_teacher_and_its_first_stage(tree, monkeypatch, capsys):
    def short(name, changes):
        return overridden(get_recipe(name), changes)

    monkeypatch.setattr(_reproducing, "_teacher", short)
    assert reproduce(tree, "--rows", "twostage-reactnet", "onestage-bireal") == 0
    lines = (tree / "results" / "imagenette.jsonl").read_text().splitlines()
    stored = [json.loads(line) for line in lines]
    rows = ["resnet34-teacher", "twostage-stage1", "twostage-reactnet", "onestage-bireal"]
    assert [r["row"] for r in stored if r["metric"] == "top1"] == rows
    assert [r["row"] for r in stored if r["metric"] == "top5"] == rows
    assert {r["data"] for r in stored} == {"imagenette, test set, 32 px"}
    names = sorted(path.name for path in (tree / "runs").iterdir())
    assert names[0] == "imagenette-onestage-bireal-1ep-32px-seed0"
    capsys.readouterr()
    assert reproduce(tree, "--rows", "twostage-reactnet", "onestage-bireal") == 0
    printed = capsys.readouterr().out
    assert "0 of 4 runs are missing" in printed
    assert "| twostage-reactnet | 1 | - |" in printed


def test_table_of_everything_lists_all_rows(tree, capsys):
    assert reproduce(tree, "--table-only") == 0
    printed = capsys.readouterr().out
    assert printed.count("| open |") >= 20 and "| onestage-reactnet-surge-1x1 |" in printed
