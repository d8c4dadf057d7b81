"""Runs of small detectors on a few real images, through the real command.

The losses of 4 steps of every row are stored in ``golden/voc.json``. After a change that is meant
to change them::

    SURGE_DATA=... python -m tests.train.voc_runs            # all rows
    SURGE_DATA=... python -m tests.train.voc_runs NAME ...   # some
"""

import json
import os
import sys
import tempfile
from contextlib import ExitStack, contextmanager
from functools import lru_cache
from pathlib import Path
from unittest import mock

import torch

from surge.cli import _training, main
from surge.models import imagenet, plain_resnet, pyramid
from surge.models.detector_parts import DetectorSettings
from surge.recipes import get_recipe, list_recipes
from surge.recipes.placing import start_of
from surge.train import build
from surge.train.detection import build as detect_build
from surge.train.detection import objective as detect_objective
from tests.train.losses import double_precision

STEPS = 4
STORED = Path(__file__).parent / "golden" / "voc.json"
WIDTHS = (8, 8, 16, 16)
SETTINGS = DetectorSettings(
    channels=16,
    hidden=32,
    candidates=(100, 50),
    proposals=30,
    sampled_anchors=32,
    sampled_regions=16,
)

cached_sets = lru_cache(build.load_sets)


@contextmanager
def small_detectors():
    """Let all detectors be narrow, with few proposals that are soon sure."""
    with ExitStack() as stack:
        for module in (imagenet, plain_resnet, pyramid):
            stack.enter_context(mock.patch.object(module, "WIDTHS", WIDTHS))
        stack.enter_context(mock.patch.object(detect_build, "SETTINGS", SETTINGS))
        # After four steps no proposal is as sure as it must be.
        stack.enter_context(mock.patch.object(detect_objective, "SURE", 0.3))
        yield


def train(*words, data, out, epochs=1, limit=2, size=96, batch=2, device="cpu"):
    """Run ``surge train`` with small detectors; return its exit code."""
    settings = ["--short", "--epochs", epochs, "--limit", limit, "--size", size, "--batch", batch]
    places = ["--data", data, "--results", out / "results", "--device", device, "--save-every", 0]
    if "--resume" not in words:
        places += [*settings, "--out", out / "run"]
    with small_detectors(), mock.patch.object(_training, "load_sets", cached_sets):
        return main(["train", *map(str, [*words, *places])])


def metrics(out):
    """The epochs of a run."""
    return [json.loads(row) for row in (out / "run" / "metrics.jsonl").read_text().splitlines()]


def others_of(name, folder):
    """The options that name the runs a row builds on, each in ``folder/<recipe>/run``."""
    recipe, words = get_recipe(name), []
    if recipe.distill is not None:
        words += ["--teacher", folder / "voc-float" / "run"]
    if "start" in recipe.model.options:
        words += ["--start", folder / start_of(recipe) / "run"]
    return words


def losses(name, data, folder):
    """Train 4 steps with ``surge train`` and return the loss of each; the run stays there."""
    with double_precision():
        words = [name, *others_of(name, folder)]
        assert train(*words, data=data, out=folder / name, epochs=STEPS) == 0
    return [row["train_loss"] for row in metrics(folder / name)]


def stored():
    """The stored losses by recipe."""
    return json.loads(STORED.read_text()) if STORED.exists() else {}


def regenerate(wanted):
    """Measure all rows, which begin with each other, and store the wanted ones."""
    torch.set_num_threads(1)
    found, data = stored(), os.environ.get("SURGE_DATA", "data")
    with tempfile.TemporaryDirectory() as base:
        for name in list_recipes("voc"):
            values = [round(x, 6) for x in losses(name, data, Path(base))]
            if not wanted or name in wanted:
                found[name] = values
    lines = ",\n".join(f'"{key}": {found[key]}' for key in sorted(found))
    STORED.write_text("{\n" + lines + "\n}\n")


if __name__ == "__main__":
    regenerate(sys.argv[1:])
