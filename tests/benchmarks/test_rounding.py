"""benchmarks/rounding.py on a small network."""

import json

import torch

import surge
from benchmarks import rounding
from surge.cli import main
from surge.models import cnn_digits


def test_last_bits_are_as_wrong_as_rounding_makes_them(monkeypatch):
    monkeypatch.setattr(rounding, "POOL", 1 << 16)
    model = cnn_digits()
    surge.binarize_(model, "recu")
    layer = next(module for module in model.modules() if not list(module.children()))
    image = torch.randn(2, 1, 8, 8)
    exact = layer(image)
    with rounding.random_last_bits(model, seed=0):
        found, again = layer(image), layer(image)
    error = (found / exact - 1).detach().abs()
    assert 0.9 * rounding.HALF_STEP < float(error.max()) < 1.01 * rounding.HALF_STEP
    assert not torch.equal(found, again)
    assert torch.equal(layer(image), exact)


def test_a_run_is_measured_and_stored(tmp_path, monkeypatch):
    monkeypatch.setattr(rounding, "POOL", 1 << 22)
    run = tmp_path / "run"
    words = ["train", "digits-cnn-recu", "--epochs", "1", "--out", run, "--results", tmp_path]
    assert main([str(word) for word in words]) == 0
    words = ["rounding.py", run, "--draws", 2, "--results", tmp_path]
    monkeypatch.setattr("sys.argv", [str(word) for word in words])
    rounding.main()
    (line,) = map(json.loads, (tmp_path / "rounding.jsonl").read_text().splitlines())
    assert line["recipe"] == "digits-cnn-recu" and line["images"] > 100
    assert len(line["draws"]) == len(line["other_draws"]) == 2
    assert abs(line["fp32"] - line["bf16"]) < line["other_bf16"] + 0.01 < 30
