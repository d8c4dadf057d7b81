"""``surge export`` on a real, short run."""

import numpy as np
import pytest
import torch

from surge.cli import main
from surge.data import load_digits


@pytest.fixture(scope="module")
def run_folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs") / "run"
    words = ["digits-cnn-recu-surge", "--epochs", "1", "--limit", "64", "--device", "cpu"]
    results = folder.parent / "results"
    assert main(["train", *words, "--out", str(folder), "--results", str(results)]) == 0
    return folder


def test_export_packs_the_newest_checkpoint(engine, run_folder, capsys):
    assert main(["export", str(run_folder)]) == 0
    assert "bytes" in capsys.readouterr().out
    model = engine.load(run_folder / "model.surge")
    digits = load_digits("test")
    batch = model.preprocess(digits.images.permute(0, 2, 3, 1).numpy())
    scale, shift = digits.normalization.constants()
    np.testing.assert_array_equal(batch, (digits.images * scale + shift).numpy())
    hits = model.run(batch).argmax(1) == digits.labels.numpy()
    assert model.classes == [str(digit) for digit in range(10)]
    # The run tested on the first 64 images of the same part.
    assert float(model.metadata("accuracy")) == pytest.approx(100 * hits[:64].mean())


def test_export_of_something_else_is_an_error(tmp_path, capsys):
    assert main(["export", str(tmp_path)]) == 2
    assert "not the folder of a run" in capsys.readouterr().err


def test_export_of_a_foreign_data_set_is_an_error(run_folder, monkeypatch, capsys):
    from surge.cli import export

    real = export._data_facts
    monkeypatch.setattr(export, "_data_facts", lambda name: real("elsewhere"))
    assert main(["export", str(run_folder)]) == 2
    assert "elsewhere" in capsys.readouterr().err
    assert isinstance(real("cifar10")[0], torch.Tensor)


@pytest.mark.parametrize(("to", "ending"), [("onnx", "onnx"), ("openvino", "xml")])
def test_export_to_a_stock_engine(run_folder, to, ending, capsys):
    assert main(["export", str(run_folder), "--to", to]) == 0
    printed = capsys.readouterr().out
    assert "differs from torch by at most" in printed
    assert (run_folder / f"model.{ending}").exists()


def test_export_rest_is_for_packed_files(run_folder, capsys):
    assert main(["export", str(run_folder), "--to", "onnx", "--rest", "int8"]) == 2
    assert "--rest is for packed files" in capsys.readouterr().err
