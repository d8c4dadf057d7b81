"""The losses of the first 4 steps of a recipe, through the real command.

Stored ones are in ``golden/losses.json``. After a change that is meant to change them::

    SURGE_DATA=... python -m tests.train.losses            # all stored rows
    SURGE_DATA=... python -m tests.train.losses NAME ...   # some, or new ones

One step is one epoch of one batch, so that schedules move between the steps. Everything is
computed in float64: in a deep binary network one sign that rounding turns over changes the next
loss by 0.1, and float32 rounds differently on another processor or with more threads.
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
from surge.recipes import get_recipe, list_recipes
from surge.recipes.variants import VARIANTS
from surge.train import build, step

STEPS = 4
STORED = Path(__file__).parent / "golden" / "losses.json"
LIMITS = {"cnn_digits": 64, "resnet20": 8, "resnet18_cifar": 4, "vgg_small": 4}
"""Images that every model is trained and tested on."""

cached_sets = lru_cache(build.load_sets)


@contextmanager
def double_precision():
    """Build and train in float64."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        with ExitStack() as stack:
            for module in (build, step):
                double = mock.patch.object(module, "compute_dtype", lambda *_: torch.float64)
                stack.enter_context(double)
            yield
    finally:
        torch.set_default_dtype(before)


def names():
    """Every row on small images, and one row with every variant of SURGE."""
    variants = [f"digits-cnn-recu-surge-{v}" for v in VARIANTS if v]
    found = {name: get_recipe(name) for name in list_recipes()}
    # photo_runs.py has those on photographs.
    images = [n for n, r in found.items() if r.model.name != "bert" and r.data.size is None]
    return list(dict.fromkeys([*images, *variants]))


def losses(name, folder, *options):
    """Train 4 steps with ``surge train`` and return the loss of each."""
    limit = LIMITS[get_recipe(name).model.name]
    words = ["train", name, "--epochs", str(STEPS), "--limit", str(limit), "--device", "cpu"]
    words += ["--out", f"{folder}/run", "--results", f"{folder}/results", "--save-every", "1e9"]
    with double_precision(), mock.patch.object(_training, "load_sets", cached_sets):
        assert main([*words, *options]) == 0
    rows = (folder / "run" / "metrics.jsonl").read_text().splitlines()
    return [json.loads(row)["train_loss"] for row in rows]


def stored():
    """The stored losses by recipe."""
    return json.loads(STORED.read_text())


def regenerate(wanted):
    """Measure the wanted recipes and store them beside the others."""
    torch.set_num_threads(1)
    found = stored() if STORED.exists() else {}
    for name in wanted or found or names():
        with tempfile.TemporaryDirectory() as folder:
            data = os.environ.get("SURGE_DATA", "data")
            found[name] = [round(x, 6) for x in losses(name, Path(folder), "--data", data)]
        STORED.write_text(
            "{\n" + ",\n".join(f'"{key}": {found[key]}' for key in sorted(found)) + "\n}\n"
        )


if __name__ == "__main__":
    regenerate(sys.argv[1:])
