"""``surge reproduce imagenette`` and ``imagenet`` on small trees: teacher, stages, table."""

import json

import pytest

from surge.cli import _planning, main
from surge.recipes import get_recipe, list_recipes, overridden
from tests.data.trees import make_tree, picture
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

    monkeypatch.setattr(_planning, "_teacher", short)
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


@pytest.fixture(scope="module")
def imagenet(tmp_path_factory):
    """A thousand classes with one picture each, as ImageNet's folders are."""
    root = tmp_path_factory.mktemp("data")
    picture(40, 48).save(root / "one.jpg")
    for part in ("train", "val"):
        for number in range(1000):
            folder = root / "imagenet" / part / f"n{number:08d}"
            folder.mkdir(parents=True)
            (folder / "0.jpg").hardlink_to(root / "one.jpg")
    (root / "one.jpg").unlink()
    return root


def reproduce_imagenet(root, out, monkeypatch, *words):
    """Run the real command, with short runs of narrow networks; return the stored rows."""
    monkeypatch.setattr(
        _planning, "_teacher", lambda name, changes: overridden(get_recipe(name), changes)
    )
    places = ["--data", root, "--runs", out / "runs", "--results", out / "results"]
    words = ["reproduce", "imagenet", *words, "--seeds", 0, "--epochs", 1, "--size", 32]
    with narrow():
        assert main([str(word) for word in [*words, "--device", "cpu", *places]]) == 0
    lines = (out / "results" / "imagenet.jsonl").read_text().splitlines()
    return [r["row"] for r in map(json.loads, lines) if r["metric"] == "top1"]


def test_imagenet_runs_from_its_folders(imagenet, tmp_path, monkeypatch, capsys):
    row = "onestage-reactnet-surge"
    assert reproduce_imagenet(imagenet, tmp_path, monkeypatch, "--rows", row) == [row]
    assert "1 of 1 runs are missing" in capsys.readouterr().out


@pytest.mark.slow
def test_all_of_imagenet_runs_with_nothing_to_edit(imagenet, tmp_path, monkeypatch, capsys):
    found = reproduce_imagenet(imagenet, tmp_path, monkeypatch)
    assert {f"imagenet-{row}" for row in found} == set(list_recipes("imagenet"))
    assert "| open |" not in capsys.readouterr().out
