"""``surge reproduce voc`` on a small tree: the float detector first, then stage by stage."""

import json

import pytest

from surge.cli import _planning, main
from surge.recipes import get_recipe
from tests.data.trees import make_voc
from tests.train.voc_runs import small_detectors

pytestmark = pytest.mark.usefixtures("torchvision")
THINGS = [[("dog", 5, 5, 50, 40)], [("car", 3, 4, 60, 40)]]


def short(name, changes):
    return _planning._changed(get_recipe(name), changes)


def reproduce(folder, *words):
    places = ["--data", folder, "--runs", folder / "runs", "--results", folder / "results"]
    words = ["reproduce", "voc", *words, "--short", "--seeds", 0, "--epochs", 1, "--size", 96]
    with small_detectors():
        return main([str(word) for word in [*words, "--device", "cpu", *places]])


def test_rows_bring_what_they_begin_with_and_the_table_says_what_it_is(
    tmp_path, monkeypatch, capsys
):
    monkeypatch.setattr(_planning, "_teacher", short)
    make_voc(tmp_path, THINGS)
    make_voc(tmp_path, THINGS, part="test")
    assert reproduce(tmp_path, "--rows", "reactnet", "ida-surge") == 0
    lines = (tmp_path / "results" / "voc.jsonl").read_text().splitlines()
    stored = [json.loads(line) for line in lines]
    order = ["float", "backbone-reactnet", "backbone-ida-surge", "reactnet", "ida-surge"]
    assert [r["row"] for r in stored if r["metric"] == "map"] == order
    assert {r["data"] for r in stored} == {"voc, test set, 96 px"}
    said = capsys.readouterr().out
    assert "evaluate with: surge evaluate" in said and "surge export" not in said
    assert reproduce(tmp_path, "--rows", "reactnet", "ida-surge") == 0
    printed = capsys.readouterr().out
    assert "0 of 5 runs are missing" in printed and "| ida-surge | 1 | - |" in printed
    assert "not with the paper's" in printed
    assert "| row | OPs, 10^9 | in the paper | MB on disk | in the paper |" in printed
    costs = printed[printed.index("| row | OPs") :]
    assert "| 18.49 |" in costs and "| 16.61 |" in costs and "backbone-" not in costs


def test_runs_on_which_others_build_are_not_trained_side_by_side(tmp_path, capsys):
    make_voc(tmp_path, THINGS)
    assert reproduce(tmp_path, "--together", "2") == 2
    assert "leave --together out" in capsys.readouterr().err
