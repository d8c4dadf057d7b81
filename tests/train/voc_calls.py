"""How many operators a step of a detector calls, and how often it waits for the device.

On a GPU small steps are bound by the host, which needs some ten microseconds for every call. To see
the counts of all rows::

    SURGE_DATA=... python -m tests.train.voc_calls
"""

import os
import tempfile
from dataclasses import replace
from pathlib import Path
from unittest import mock

import torch

from surge.models import boxes
from surge.models.detector_parts import DetectorSettings
from surge.models.vision_ops import vision
from surge.recipes import get_recipe, list_recipes
from surge.recipes.placing import placed, start_of
from surge.recipes.voc import shortened
from surge.train.detection import build as detect_build
from surge.train.detection.task import load_detection_sets
from surge.train.loop import LoopOptions, Trainer
from surge.train.run import RunFolder
from tests.calls import Calls
from tests.train.voc_runs import small_detectors

BATCH, SIZE = 16, 96
SETTINGS = DetectorSettings(
    channels=16,
    hidden=32,
    candidates=(200, 100),
    proposals=100,
    sampled_anchors=64,
    sampled_regions=64,
)


def simple_align(features, rois, size, scale, ratio):
    """Stands for RoIAlign, which is one operator where torchvision's library loads."""
    mean = features.mean(dim=(2, 3)).index_select(0, rois[:, 0].long())
    return mean[:, :, None, None].expand(-1, -1, *size)


def trainer_of(name, sets, folder):
    """Build a row on what it begins with, which must have been counted before."""
    recipe = shortened(get_recipe(name))
    places = {"teacher": None, "model": None}
    if recipe.distill is not None:
        places["teacher"] = str(folder / "voc-float")
    if "start" in recipe.model.options:
        places["start"] = str(folder / start_of(recipe))
    recipe = replace(
        recipe,
        train=replace(recipe.train, epochs=1, batch=BATCH),
        data=replace(recipe.data, size=SIZE),
    )
    recipe = placed(recipe, **places)
    run = RunFolder.create(folder / name, recipe, {"seed": 0})
    options = LoopOptions(save_every=1e9)
    return Trainer(recipe, sets, seed=0, device=torch.device("cpu"), folder=run, options=options)


def counted(name, sets, folder):
    """Return the calls of one step and of one test batch; the row can be built upon afterwards."""
    with (
        small_detectors(),
        mock.patch.object(detect_build, "SETTINGS", SETTINGS),
        mock.patch.object(vision().ops, "roi_align", simple_align),
        mock.patch.dict(boxes.PAIRS, {"cpu": 1 << 28}),  # in as many pieces as on a GPU
    ):
        trainer = trainer_of(name, sets, folder)
        step = trainer.train_step
        # Shortening gradients and updating weights are a few calls for all of them on a GPU.
        step.spec = replace(step.spec, clip=None)
        trainer.begin_epoch()
        part, weight = next(trainer.batches())
        with mock.patch.object(trainer.parts.optimizer, "step"), Calls() as training:
            trainer.step(part, weight)
        trainer.parts.model.eval()
        with Calls() as testing:
            trainer.test(trainer.test_loader.part(trainer.test_loader.plan(0), 0))
        trainer.epoch, trainer.last, trainer.best = 1, 0.0, 0.0
        trainer.save()
        trainer.folder.write("summary.txt", "")
    return training, testing


def load_few(root):
    """Return one batch of real images to train on, and one to test on."""
    return load_detection_sets(replace(get_recipe("voc-float").data, limit=BATCH), Path(root))


if __name__ == "__main__":
    torch.set_num_threads(1)
    sets = load_few(os.environ.get("SURGE_DATA", "data"))
    print(f"{'row':26} step: calls launches waits   test: calls launches waits")
    with tempfile.TemporaryDirectory() as base:
        for row in list_recipes("voc"):
            found = counted(row, sets, Path(base))
            numbers = "     ".join(f"{c.total:12d} {c.launches:8d} {c.waits:5d}" for c in found)
            print(f"{row:26}{numbers}", flush=True)
