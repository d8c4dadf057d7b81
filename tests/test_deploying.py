"""docs/deploying.md: its code runs, its commands and links exist."""

import re
from pathlib import Path

import numpy as np
import torch

import surge
from surge.cli import discover
from surge.models import cnn_digits
from surge.pretrained import list_pretrained
from tests.runtime.building import import_engine

ROOT = Path(__file__).parents[1]
TEXT = (ROOT / "docs" / "deploying.md").read_text(encoding="utf-8")


def test_python_block_runs(tmp_path, monkeypatch):
    import_engine()
    monkeypatch.chdir(tmp_path)
    code = re.search(r"```python\n(.*?)```", TEXT, re.S)[1]
    model = cnn_digits(width=8)
    surge.binarize_(model, "recu")
    surge.compensate_(model)
    example = torch.randn(1, 1, 8, 8)
    names = {"surge": surge, "model": model, "example": example, "batch": example.numpy()}
    *before, last = code.strip().splitlines()
    exec("\n".join(before), names)
    with torch.no_grad():
        wanted = model.eval()(example).numpy()
    np.testing.assert_allclose(eval(last, names), wanted, atol=1e-5)


def test_commands_and_shipped_names_exist():
    commands = discover().commands
    for first, second in re.findall(r"(?:`|^)surge ([a-z]+) ?([a-z]*)", TEXT, re.M):
        assert first in commands or f"{first} {second}" in commands, (first, second)
    for name in re.findall(r'load_pretrained\("([^"]+)"\)', TEXT):
        assert name in list_pretrained()


def test_links_lead_somewhere():
    for target in re.findall(r"\]\(([^)#]+)\)", TEXT):
        assert (ROOT / "docs" / target).exists(), target
