"""The end of the demo: pack, run, and time beside float."""

import sys

import numpy as np
import pytest
import torch

import surge
from surge.data import load_digits
from surge.models import cnn_digits
from surge.study.demo import demo_engine
from tests.runtime.building import import_engine


@pytest.fixture
def networks():
    binary, floating = cnn_digits(), cnn_digits(activation="relu").eval()
    surge.binarize_(binary, "recu")
    return binary.eval(), floating


def test_ship_packs_runs_and_times_beside_float(networks, tmp_path):
    engine = import_engine()
    images = load_digits("test")
    path = tmp_path / "new" / "digits.surge"
    threads = torch.get_num_threads()
    facts = {"classes": images.classes, "preprocessing": vars(images.normalization)}
    found = demo_engine.ship(*networks, images, path, seconds=0.05, **facts)
    assert torch.get_num_threads() == threads
    assert [s.name for s in found.served] == [
        "Float in torch",
        "Float in onnxruntime",
        "Binary, packed",
    ]
    assert found.packed.file_bytes == path.stat().st_size < found.floating.file_bytes / 5
    assert found.packed.accuracy == found.torch_accuracy
    assert all(0 < s.micros < 1e6 for s in found.served)
    assert engine.load(path).classes == list(images.classes)
    assert [row["name"] for row in demo_engine.rows(found)] == [s.name for s in found.served]
    assert "of tensors" not in demo_engine.sentence(found)


def test_ship_without_onnxruntime_still_compares_with_torch(networks, tmp_path, monkeypatch):
    import_engine()
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    some = load_digits("test").subset(np.arange(8))
    found = demo_engine.ship(*networks, some, tmp_path / "d.surge", seconds=0.01)
    assert [s.name for s in found.served] == ["Float in torch", "Binary, packed"]


def test_ship_without_the_engine_says_so(networks, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "surge_runtime", None)
    some = load_digits("test").subset(np.arange(8))
    found = demo_engine.ship(*networks, some, tmp_path / "d.surge")
    assert not found.served and "pip install surge-runtime" in found.missing
    assert (tmp_path / "d.surge").exists()
