"""The commands of ``docs/voc.md``, from first to last, with small detectors and few pictures."""

import shlex
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from surge.cli import _planning, main
from surge.models import build_model
from surge.recipes import get_recipe
from tests.data.trees import make_voc
from tests.test_docs import blocks, commands
from tests.train.voc_runs import small_detectors

pytestmark = pytest.mark.usefixtures("torchvision")
PAGE = (Path(__file__).parents[1] / "docs" / "voc.md").read_text(encoding="utf-8")
THINGS = [[("dog", 5, 5, 50, 40)], [("car", 3, 4, 60, 40)]]
SMALL = ("--epochs", "1", "--size", "96", "--device", "cpu", "--data", ".")
SHORTER = {
    "train": (*SMALL, "--limit", "2", "--batch", "2"),
    "reproduce": (*SMALL, "--rows", "reactnet"),
    "evaluate": ("--device", "cpu", "--data", "."),
    "detect": ("--device", "cpu"),
    "export": (),
}
"""What makes a command of hours one of seconds; it stays the same command."""


def short(name, changes):
    """The float detector of a table, as short as its students."""
    return _planning._changed(get_recipe(name), changes)


def test_page_runs_from_top_to_bottom(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(_planning, "_teacher", short)
    make_voc(tmp_path, THINGS)
    make_voc(tmp_path, THINGS, part="test")
    pixels = np.random.default_rng(0).integers(0, 256, (60, 90, 3), dtype=np.uint8)
    Image.fromarray(pixels).save("photo.jpg")
    bodies = [body for language, body in blocks(PAGE) if language == "bash"]
    with small_detectors():
        torch.save(build_model("resnet18").state_dict(), "resnet18.pth")
        for command in (line for body in bodies for line in commands(body)):
            _, *words = shlex.split(command)
            assert main([*words, *SHORTER[words[0]]]) == 0, command
    assert Path("runs/voc-ida-surge-seed0/summary.txt").exists()
    assert Path("results/voc.jsonl").read_text().count('"row": "reactnet", ') > 0
