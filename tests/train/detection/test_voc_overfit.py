"""Twenty real images are learned by heart: by the float detector, then by the one of 1 bit."""

from contextlib import ExitStack
from dataclasses import replace
from unittest import mock

import pytest
import torch

from surge.models import imagenet, plain_resnet, pyramid
from surge.models.detector_parts import DetectorSettings
from surge.recipes import get_recipe
from surge.recipes.placing import placed
from surge.recipes.voc import shortened
from surge.train.detection import build as detect_build
from surge.train.detection.task import load_detection_sets
from surge.train.loop import LoopOptions, Trainer
from surge.train.run import RunFolder

SETTINGS = DetectorSettings(
    channels=32,
    hidden=128,
    candidates=(200, 100),
    proposals=60,
    sampled_anchors=64,
    sampled_regions=32,
)
WIDTHS = (16, 32, 64, 128)
SIZE = 128


@pytest.fixture
def smaller():
    with ExitStack() as stack:
        for module in (imagenet, plain_resnet, pyramid):
            stack.enter_context(mock.patch.object(module, "WIDTHS", WIDTHS))
        stack.enter_context(mock.patch.object(detect_build, "SETTINGS", SETTINGS))
        yield


def learned(name, sets, folder, epochs, **others):
    """Train on the images that are tested on; return the run's folder and its precision."""
    recipe = shortened(get_recipe(name))
    recipe = replace(
        recipe,
        train=replace(recipe.train, epochs=epochs, batch=5),
        data=replace(recipe.data, size=SIZE, augment=False),
    )
    recipe = placed(recipe, model=None, **{"teacher": None, **others})
    run = RunFolder.create(folder / name, recipe, {"seed": 0})
    options = LoopOptions(save_every=1e9)
    trainer = Trainer(recipe, sets, seed=0, device=torch.device("cpu"), folder=run, options=options)
    judge, whole = trainer.evaluate, []

    def evaluate():
        if trainer.epoch + 1 < epochs:  # only the end counts
            return 0.0, None
        whole.append(judge()[0])
        return whole[-1], None

    trainer.evaluate = evaluate
    trainer.run()
    return str(run.path), whole[-1]


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_twenty_images_are_learned_by_heart(torchvision, smaller, tmp_path, voc_dir):
    spec = replace(get_recipe("voc-float").data, limit=20)
    images, _ = load_detection_sets(spec, voc_dir)
    sets = (images, images)
    real, precision = learned("voc-float", sets, tmp_path, 140)
    assert precision > 90
    first, _ = learned("voc-backbone-reactnet", sets, tmp_path, 60, start=real)
    _, precision = learned("voc-reactnet", sets, tmp_path, 80, start=first)
    assert precision > 80
