"""benchmarks/imagenette_cost.py on a few small photographs with narrow networks."""

import json

import pytest
import torch

from benchmarks import imagenette_cost as cost
from surge.recipes import get_recipe, overridden
from surge.recipes.recipe import Recipe
from surge.study.bench import cost_table
from surge.train.build import load_sets
from surge.train.loop import LoopOptions, Trainer
from surge.train.run import RunFolder
from tests.data.trees import make_tree
from tests.train.losses import double_precision
from tests.train.photo_runs import narrow

SMALL = {"epochs": 2, "size": 32, "batch": 256}
SURGE = "imagenette-onestage-reactnet-surge"


@pytest.fixture
def tree(tmp_path):
    return make_tree(tmp_path / "tree", [f"n{i}" for i in range(10)], train=2, val=1, size=(96, 96))


def test_all_rows_are_trained_once_and_stored_apart(tmp_path, tree, monkeypatch, capsys):
    monkeypatch.setattr(cost, "CHANGES", SMALL)
    monkeypatch.setattr(cost_table, "CHANGES", SMALL)
    monkeypatch.setattr(cost_table, "DATA", "imagenette, test set, 32 px")
    words = ["--data", str(tree), "--results", str(tmp_path), "--device", "cpu"]
    with narrow():
        cost.main(words)
    assert capsys.readouterr().out.count("top-1") == len(cost_table.ROWS)
    lines = (tmp_path / "imagenette.jsonl").read_text().splitlines()
    stored = [json.loads(line) for line in lines]
    assert len(stored) == 2 * len(cost_table.ROWS)
    assert {row["metric"] for row in stored} == {"top1", "top5"}
    assert stored[-1]["overrides"] == {**SMALL, "form": "literal"}
    known = cost_table.accuracies(tmp_path)
    assert known.keys() == {(row.row, row.form) for row in cost_table.ROWS}
    cost.main(words)
    assert capsys.readouterr().out == ""


def trainer_of(recipe: Recipe, sets, path):
    path.mkdir()
    return Trainer(
        recipe,
        sets,
        seed=0,
        device=torch.device("cpu"),
        folder=RunFolder(path),
        options=LoopOptions(),
    )


def test_literal_run_follows_ours(tmp_path, tree):
    surged = overridden(get_recipe(SURGE), SMALL)
    with narrow(), double_precision():
        sets = load_sets(surged.data, tree)
        ours = trainer_of(surged, sets, tmp_path / "ours")
        theirs = trainer_of(
            overridden(get_recipe(SURGE.removesuffix("-surge")), SMALL), sets, tmp_path / "theirs"
        )
        cost.compensate_trainer_(theirs, surged)
        for trainer in (ours, theirs):
            trainer.run()
    expected = dict(ours.parts.model.named_parameters())
    decayed = {id(p) for p in theirs.parts.optimizer.param_groups[-1]["params"]}
    assert len(decayed) == 16
    for name, value in theirs.parts.model.named_parameters():
        torch.testing.assert_close(value, expected[name], rtol=1e-6, atol=1e-9, msg=name)
