"""Photographs on a GPU: compiled and captured steps are the eager ones, resident and streamed."""

from dataclasses import replace

import pytest
import torch

from surge.data.croploader import CropLoader, CropSettings, StreamLoader
from surge.data.folders import scan_tree
from surge.data.pictures import load_pictures
from surge.recipes.placing import placed
from surge.train import build
from surge.train.loop import LoopOptions, Trainer
from surge.train.run import RunFolder
from tests.data.trees import make_tree
from tests.train.photo_runs import narrow
from tests.train.photos.test_photos import small

pytestmark = [pytest.mark.gpu, pytest.mark.usefixtures("exact")]
GPU = torch.device("cuda", 0)


@pytest.fixture
def tree(tmp_path):
    return make_tree(tmp_path / "tree", train=8, size=(64, 64))


def rows_of(path, recipe, sets, **options):
    """The epochs of a run in fp32.

    A thousandth, which is what rounding to bf16 changes, moves the first epoch's loss by up to a
    third: 4 steps of 6 images with the rates of ImageNet. A millionth moves it by 0.3 %.
    """
    path.mkdir(exist_ok=True)
    recipe = replace(recipe, train=replace(recipe.train, precision="fp32"))
    rows = []
    with narrow():
        Trainer(
            recipe, sets, seed=0, device=GPU, folder=RunFolder(path), options=LoopOptions(**options)
        ).run(rows.append)
    return rows


@pytest.mark.parametrize("stored", [None, 64])
@pytest.mark.parametrize(
    "row", ["resnet18-float", "onestage-reactnet-surge", "onestage-bonn", "onestage-irnet"]
)
def test_captured_run_follows_the_eager_one(tmp_path, tree, stored, row):
    recipe = small(f"imagenet-{row}", stored=stored)
    sets = build.load_sets(recipe.data, tree)
    eager = rows_of(tmp_path / "eager", recipe, sets, compiled=False, captured=False)
    captured = rows_of(tmp_path / "captured", recipe, sets)
    assert captured[0]["train_loss"] == pytest.approx(eager[0]["train_loss"], rel=0.05)
    assert captured[-1]["test_top5"] == 100


def test_teacher_is_captured_with_its_student(tmp_path, tree):
    torch.manual_seed(0)
    with narrow():
        from surge.models import resnet34

        torch.save(resnet34(classes=3).state_dict(), tmp_path / "teacher.pth")
    recipe = small("imagenet-twostage-stage1", stored=64)
    teacher = str(tmp_path / "teacher.pth")
    recipe = placed(recipe, model=None, teacher=teacher, start=None)
    sets = build.load_sets(recipe.data, tree)
    eager = rows_of(tmp_path / "eager", recipe, sets, compiled=False, captured=False)
    captured = rows_of(tmp_path / "captured", recipe, sets)
    assert captured[0]["train_loss"] == pytest.approx(eager[0]["train_loss"], rel=0.05)


@pytest.mark.parametrize("kind", ["squares", "files"])
def test_batches_of_the_gpu_are_those_of_the_cpu(tree, kind):
    files, _ = scan_tree(tree)
    crop = CropSettings(32, train=True)
    options = {"batch_size": 12, "seed": 3, "shuffle": True}

    def batches(device):
        if kind == "files":
            loader = StreamLoader(files, crop, device=device, workers=2, **options)
        else:
            loader = CropLoader(load_pictures(files, 64), crop, device=device, **options)
        return list(loader.batches(1))

    for (images, labels), (wanted, right) in zip(batches(GPU), batches("cpu"), strict=True):
        torch.testing.assert_close(images.cpu(), wanted, rtol=0, atol=2e-3)
        assert torch.equal(labels.cpu(), right)
