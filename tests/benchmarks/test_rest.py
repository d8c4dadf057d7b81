"""benchmarks/rest.py on a small network."""

import torch

import surge
from benchmarks import rest
from surge.models import cnn_digits
from tests.runtime.building import import_engine


def test_files_are_compared_with_the_first(tmp_path):
    import_engine()
    torch.manual_seed(0)
    model = cnn_digits()
    surge.binarize_(model, "recu")
    model.eval()
    facts = {"preprocessing": {"mean": (0.5,), "std": (0.5,), "maximum": 16}}
    paths = [tmp_path / f"{kind}.surge" for kind in ("fp32", "int8")]
    for path in paths:
        surge.pack(model, torch.zeros(1, 1, 8, 8), path, rest=path.stem, **facts)
    first, second = rest.measure("digits-cnn-recu", paths, tmp_path)
    assert first["same"] == 100.0 and 0 < second["same"] <= 100
    assert second["bytes"] < first["bytes"] and first["images"] > 100
    assert 0 <= first["top1"] <= 100
