"""Runs on a few photographs with narrow networks, through the real command.

The losses of 4 steps of every row are stored in ``golden/imagenette.json``. After a change that
is meant to change them::

    SURGE_DATA=... python -m tests.train.photo_runs            # all rows
    SURGE_DATA=... python -m tests.train.photo_runs NAME ...   # some
"""

import json
import os
import sys
import tempfile
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path
from unittest import mock

import torch

from surge.cli import _training, main
from surge.models import imagenet, plain_resnet
from surge.recipes import get_recipe, list_recipes
from surge.train import build
from tests.train.losses import double_precision

STEPS = 4
STORED = Path(__file__).parent / "golden" / "imagenette.json"
NARROW = (8, 8, 16, 16)
TEACHER, FIRST = "imagenette-resnet34-teacher", "imagenette-twostage-stage1"

cached_sets = lru_cache(build.load_sets)


@contextmanager
def narrow():
    """Let all networks for photographs have few channels."""
    with (
        mock.patch.object(imagenet, "WIDTHS", NARROW),
        mock.patch.object(plain_resnet, "WIDTHS", NARROW),
    ):
        yield


def train(*words, data, out, epochs=1, limit=10, size=32):
    """Run ``surge train`` with narrow networks; return its exit code."""
    settings = (
        ["--epochs", epochs, "--limit", limit, "--size", size] if "--resume" not in words else []
    )
    places = ["--data", data, "--results", out / "results", "--device", "cpu", "--save-every", 0]
    if "--resume" not in words:
        places += ["--out", out / "run"]
    with narrow(), mock.patch.object(_training, "load_sets", cached_sets):
        return main(["train", *map(str, [*words, *settings, *places])])


def metrics(out):
    """The epochs of a run."""
    return [json.loads(row) for row in (out / "run" / "metrics.jsonl").read_text().splitlines()]


def losses(name, folder, data, others):
    """Train 4 steps with ``surge train`` and return the loss of each."""
    recipe = get_recipe(name)
    words = [name]
    if recipe.distill is not None:
        words += ["--teacher", others / "teacher" / "run"]
    if "start" in recipe.model.options:
        words += ["--start", others / "first" / "run"]
    with double_precision():
        assert train(*words, data=data, out=folder, epochs=STEPS) == 0
    return [row["train_loss"] for row in metrics(folder)]


def train_others(folder, data):
    """Train a teacher and a first stage, one step each."""
    with double_precision():
        assert train(TEACHER, data=data, out=folder / "teacher") == 0
        words = [FIRST, "--teacher", folder / "teacher" / "run"]
        assert train(*words, data=data, out=folder / "first") == 0


def stored():
    """The stored losses by recipe."""
    return json.loads(STORED.read_text()) if STORED.exists() else {}


def regenerate(wanted):
    """Measure the wanted recipes and store them beside the others."""
    torch.set_num_threads(1)
    found, data = stored(), os.environ.get("SURGE_DATA", "data")
    with tempfile.TemporaryDirectory() as base:
        train_others(Path(base), data)
        for name in wanted or list_recipes("imagenette"):
            values = losses(name, Path(base) / name, data, Path(base))
            found[name] = [round(x, 6) for x in values]
    lines = ",\n".join(f'"{key}": {found[key]}' for key in sorted(found))
    STORED.write_text("{\n" + lines + "\n}\n")


if __name__ == "__main__":
    regenerate(sys.argv[1:])
