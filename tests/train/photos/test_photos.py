"""ImageNet's rows on a few photographs: stored losses, resume, top-5, streaming, errors."""

import json
import shutil
from dataclasses import replace
from functools import partial

import pytest
import torch

from surge.cli import main
from surge.errors import ConfigError, DataNotFoundError
from surge.recipes import get_recipe, list_recipes
from surge.train import build, checkpoint
from surge.train.distributed import World
from surge.train.evaluate import evaluate_run
from surge.train.loop import LoopOptions, Trainer
from surge.train.photos import loading
from surge.train.run import RunFolder
from tests.data.trees import make_tree
from tests.nets import assert_same_tensors
from tests.train.photo_runs import losses, metrics, narrow, stored, train, train_others

GOLDEN = stored()
CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def others(tmp_path_factory, imagenette_dir):
    folder = tmp_path_factory.mktemp("others")
    train_others(folder, imagenette_dir)
    return folder


@pytest.mark.parametrize("name", GOLDEN)
def test_losses_are_the_stored_ones(tmp_path, imagenette_dir, others, name):
    found = losses(name, tmp_path, imagenette_dir, others)
    assert found == pytest.approx(GOLDEN[name], abs=1e-4)


def test_every_row_has_stored_losses():
    assert set(GOLDEN) == set(list_recipes("imagenette"))


def test_arms_of_a_pair_start_with_the_same_loss():
    for name in GOLDEN:
        assert GOLDEN[name][0] == GOLDEN[name.partition("-surge")[0]][0]


@pytest.mark.parametrize("name", ["onestage-reactnet-surge", "onestage-rbonn"])
def test_resumed_run_ends_bit_for_bit_as_the_whole_one(tmp_path, imagenette_dir, name):
    recipe = f"imagenette-{name}"
    assert train(recipe, data=imagenette_dir, out=tmp_path / "a", epochs=3) == 0
    shutil.copytree(tmp_path / "a", tmp_path / "b")
    (tmp_path / "b" / "run" / "checkpoints" / "epoch-00003.pt").unlink()
    assert train("--resume", tmp_path / "b" / "run", data=imagenette_dir, out=tmp_path / "b") == 0
    whole, again = (
        checkpoint.load_newest(tmp_path / arm / "run" / "checkpoints", recipe, CPU)[0]
        for arm in "ab"
    )
    assert_same_tensors(again["model"], whole["model"])
    assert again["scores"] == whole["scores"]
    rows = [
        [{k: v for k, v in row.items() if k != "seconds"} for row in metrics(tmp_path / arm)]
        for arm in "ab"
    ]
    assert rows[0] == rows[1]


def test_top5_is_reported_and_stored_beside_top1(tmp_path, imagenette_dir):
    assert train("imagenette-onestage-bireal", data=imagenette_dir, out=tmp_path, limit=20) == 0
    (row,) = metrics(tmp_path)
    assert 0 <= row["test_top1"] <= row["test_top5"] <= 100
    lines = (tmp_path / "results" / "imagenette.jsonl").read_text().splitlines()
    first, second = map(json.loads, lines)
    assert (first["metric"], second["metric"]) == ("top5", "top1")
    assert first["last"] == pytest.approx(row["test_top5"], abs=1e-3)
    assert first["data"] == "imagenette, test set, 32 px, first 20"


def test_count_ranked_is_among_the_five_largest():
    logits = torch.tensor([[9.0, 8, 7, 6, 5, 4], [9.0, 8, 7, 6, 5, 4]])
    assert loading.count_ranked(logits, torch.tensor([4, 5])) == 1
    assert loading.count_ranked(logits[:, :3], torch.tensor([2, 0])) == 2


def small(recipe="imagenet-onestage-reactnet-surge", **data):
    """A row on a tree of three classes."""
    found = get_recipe(recipe)
    spec = replace(found.data, size=32, **data)
    model = replace(found.model, options={**found.model.options, "classes": 3})
    return replace(found, data=spec, model=model, train=replace(found.train, epochs=2, batch=6))


def trainer(path, recipe, sets, **options):
    path.mkdir(exist_ok=True)
    with narrow():
        return Trainer(
            recipe, sets, seed=0, device=CPU, folder=RunFolder(path), options=LoopOptions(**options)
        )


@pytest.mark.parametrize("stored_side", [None, 40])
def test_files_and_squares_train_through_the_loop(tmp_path, stored_side):
    recipe = small(stored=stored_side)
    make_tree(tmp_path / "tree", train=4, size=(40, 40))
    sets = build.load_sets(recipe.data, tmp_path / "tree")
    rows = []
    outcome = trainer(tmp_path / "run", recipe, sets).run(rows.append)
    assert outcome.finished and len(rows) == 2
    assert set(outcome.others) == {"top5"}
    again = []
    trainer(tmp_path / "again", recipe, sets).run(again.append)
    assert [r["train_loss"] for r in rows] == [r["train_loss"] for r in again]


@pytest.mark.parametrize("stored_side", [40, pytest.param(None, marks=pytest.mark.slow)])
def test_compiled_step_gives_the_eager_losses(tmp_path, monkeypatch, stored_side):
    recipe = small("imagenet-onestage-bireal", stored=stored_side)
    make_tree(tmp_path / "tree", train=4, size=(40, 40))
    sets = build.load_sets(recipe.data, tmp_path / "tree")
    eager, compiled = [], []
    trainer(tmp_path / "eager", recipe, sets).run(eager.append)
    torch._dynamo.reset()
    monkeypatch.setattr(torch, "compile", partial(torch.compile, backend="aot_eager"))
    trainer(tmp_path / "compiled", recipe, sets, compiled=True).run(compiled.append)
    assert [r["train_loss"] for r in compiled] == pytest.approx([r["train_loss"] for r in eager])


def test_files_are_decoded_by_as_many_workers_as_were_chosen(tmp_path):
    make_tree(tmp_path / "tree")
    recipe = small()
    sets = build.load_sets(recipe.data, tmp_path / "tree")
    loop = trainer(tmp_path / "run", recipe, sets, workers=3)
    assert loop.train_loader.workers == loop.test_loader.workers == 3


def test_held_out_images_come_from_the_training_set(tmp_path):
    make_tree(tmp_path, train=10, size=(40, 40))
    train_set, test_set = build.load_sets(small(held_out=True).data, tmp_path)
    assert (len(train_set), len(test_set)) == (27, 3)
    assert not set(train_set.files) & set(test_set.files)
    assert train_set.root == test_set.root


def test_tree_with_another_number_of_classes_is_refused(tmp_path):
    make_tree(tmp_path, classes=("ant", "bee"), size=(40, 40))
    recipe = small()
    with pytest.raises(ConfigError, match="is for 3 classes, but the image tree has 2 class"):
        trainer(tmp_path / "run", recipe, build.load_sets(recipe.data, tmp_path))


@pytest.mark.parametrize(
    "break_, words",
    [
        (lambda tree: shutil.rmtree(tree / "val" / "bee"), 'lacks the class folder "bee"'),
        (lambda tree: [p.unlink() for p in (tree / "train" / "ant").iterdir()], "holds no images"),
        (lambda tree: shutil.rmtree(tree / "val"), "No image tree in"),
    ],
)
def test_command_answers_a_broken_tree_in_one_line(tmp_path, capsys, break_, words):
    tree = make_tree(tmp_path / "tree")
    break_(tree)
    assert train("imagenette-onestage-bireal", data=tree, out=tmp_path) == 2
    told = capsys.readouterr().err.strip().splitlines()
    assert len(told) == 1 and words in told[0]
    assert not (tmp_path / "run").exists()


def test_wrong_resolution_is_answered_in_one_line(tmp_path, capsys):
    tree = make_tree(tmp_path / "tree", classes=[f"c{n}" for n in range(10)], size=(64, 80))
    assert train("imagenette-onestage-bireal", data=tree, out=tmp_path) == 2
    told = capsys.readouterr().err.strip().splitlines()
    assert len(told) == 1 and "80x64 is too small: this recipe keeps squares of 96 px" in told[0]


@pytest.mark.parametrize(
    "name, size, words",
    [
        ("imagenette-onestage-bireal", 100, "size=100 is not accepted"),
        ("imagenet-onestage-bireal", 32, "is for 1000 classes"),
    ],
)
def test_refused_command_leaves_no_folder_in_the_way(tmp_path, capsys, name, size, words):
    tree = make_tree(tmp_path / "tree", classes=[f"c{n}" for n in range(10)], size=(96, 96))
    assert train(name, data=tree, out=tmp_path, size=size) == 2
    assert words in capsys.readouterr().err
    assert not (tmp_path / "run").exists()


def test_no_data_at_all(tmp_path):
    with pytest.raises(DataNotFoundError, match="imagenette96"):
        build.load_sets(get_recipe("imagenette-onestage-bireal").data, tmp_path)


def test_evaluate_says_what_the_last_epoch_did(tmp_path, imagenette_dir, capsys):
    assert train("imagenette-onestage-bireal", data=imagenette_dir, out=tmp_path, limit=30) == 0
    (row,) = metrics(tmp_path)
    capsys.readouterr()
    words = ["evaluate", tmp_path / "run", "--data", imagenette_dir, "--device", "cpu"]
    with narrow():
        assert main([str(word) for word in words]) == 0
    said = f"top-1 {row['test_top1']:.2f} %, top-5 {row['test_top5']:.2f} % on 30 images"
    assert said in capsys.readouterr().out


def test_evaluate_reads_files_too(tmp_path):
    recipe = small("imagenet-onestage-bireal")
    make_tree(tmp_path / "tree", train=4, size=(40, 44))
    environment = {"seed": 0}
    folder = RunFolder.create(tmp_path / "run", recipe, environment)
    sets = build.load_sets(recipe.data, tmp_path / "tree")
    outcome = trainer(folder.path, recipe, sets).run()
    with narrow():
        found = evaluate_run(folder.path, tmp_path / "tree", CPU)
    assert found.top1 == pytest.approx(outcome.last) and found.top5 == 100
    assert found.classes == ("ant", "bee", "cat")


def test_middle_is_what_the_test_loader_shows(tmp_path):
    recipe = small("imagenet-onestage-bireal", stored=40)
    make_tree(tmp_path, size=(40, 40))
    sets = build.load_sets(recipe.data, tmp_path)
    _, loader = build.make_loaders(recipe, sets, 0, CPU, World())
    shown, _ = next(iter(loader))
    scale, shift = sets[1].normalization.constants()
    levels = (shown - shift) / scale
    assert (loading.middle_of(sets[1], 32).images - levels).abs().max() < 0.51
