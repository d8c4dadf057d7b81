"""A few real images are learnt by heart: gradients, optimizer and schedules do their work."""

from dataclasses import replace

import pytest
import torch

from surge.recipes import get_recipe
from surge.train.build import load_sets
from surge.train.loop import LoopOptions, Trainer
from surge.train.run import RunFolder


def train_accuracy(folder, cifar10_dir, *, count, shrink=1, device="cpu", **settings):
    """Train ResNet-20 with ReCU on the first CIFAR-10 images; return the last train accuracy."""
    recipe = get_recipe("cifar10-resnet20-recu")
    recipe = replace(
        recipe,
        data=replace(recipe.data, limit=count, augment=False),
        train=replace(recipe.train, weight_decay=0.0, precision="fp32", **settings),
    )
    train, test = (
        replace(s, images=s.images[:, :, ::shrink, ::shrink].contiguous())
        for s in load_sets(recipe.data, cifar10_dir)
    )
    sets = (train, test.subset(torch.arange(8)))
    trainer = Trainer(
        recipe,
        sets,
        seed=0,
        device=torch.device(device),
        folder=RunFolder(folder),
        options=LoopOptions(save_every=1e9),
    )
    rows = []
    trainer.run(rows.append)
    assert rows[0]["train_top1"] < 50
    return rows[-1]["train_top1"]


def test_32_small_images_are_learnt_by_heart(tmp_path, cifar10_dir):
    """Eighteen binary layers learn slowly: 150 steps, at a quarter of the resolution."""
    settings = {"epochs": 150, "batch": 32, "lr": 0.05}
    assert train_accuracy(tmp_path, cifar10_dir, count=32, shrink=4, **settings) > 90


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_512_images_are_learnt_by_heart(tmp_path, cifar10_dir):
    device = "cuda" if torch.cuda.is_available() else "cpu"
    settings = {"epochs": 110, "batch": 64, "lr": 0.05, "device": device}
    assert train_accuracy(tmp_path, cifar10_dir, count=512, **settings) > 90
