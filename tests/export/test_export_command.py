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
    monkeypatch.setattr(export, "_data_facts", lambda name, length: real("elsewhere", None))
    assert main(["export", str(run_folder)]) == 2
    assert "elsewhere" in capsys.readouterr().err
    assert isinstance(real("cifar10", None)[0], torch.Tensor)


@pytest.mark.parametrize(("to", "ending"), [("onnx", "onnx"), ("openvino", "xml")])
def test_export_to_a_stock_engine(run_folder, to, ending, capsys):
    assert main(["export", str(run_folder), "--to", to]) == 0
    printed = capsys.readouterr().out
    assert "differs from torch by at most" in printed
    assert (run_folder / f"model.{ending}").exists()


def test_export_rest_is_for_packed_files(run_folder, capsys):
    assert main(["export", str(run_folder), "--to", "onnx", "--rest", "int8"]) == 2
    assert "--rest is for packed files" in capsys.readouterr().err


def test_export_measures_a_packed_file_beside_torch(engine, run_folder, tmp_path, capsys):
    target = tmp_path / "measured.surge"
    assert main(["export", str(run_folder), "--out", str(target), "--measure"]) == 0
    assert "in the engine" in capsys.readouterr().out
    model = engine.load(target)
    assert model.metadata("accuracy") == model.metadata("accuracy_torch")
    assert model.metadata("recipe") == "digits-cnn-recu-surge"
    # The run was limited to 64 test images, and so is its test.
    assert model.metadata("tested_on") == "digits, test set, first 64, 64 images"


def test_export_of_one_checkpoint_gives_the_same_network(engine, run_folder, tmp_path):
    (checkpoint,) = (run_folder / "checkpoints").glob("*.pt")
    whole, one = tmp_path / "whole.surge", tmp_path / "one.surge"
    assert main(["export", str(run_folder), "--out", str(whole)]) == 0
    assert main(["export", str(checkpoint), "--out", str(one)]) == 0
    x = np.random.default_rng(0).standard_normal((3, 1, 8, 8), dtype=np.float32)
    np.testing.assert_array_equal(engine.load(one).run(x), engine.load(whole).run(x))


def test_export_of_a_run_without_surge(engine, tmp_path):
    folder = tmp_path / "plain"
    words = ["digits-cnn-recu", "--epochs", "1", "--limit", "64", "--device", "cpu"]
    assert main(["train", *words, "--out", str(folder), "--results", str(tmp_path)]) == 0
    assert main(["export", str(folder)]) == 0
    assert engine.load(folder / "model.surge").metadata("method") == "recu"


def test_export_of_something_that_is_no_checkpoint_is_an_error(tmp_path, capsys):
    path = tmp_path / "notes.pt"
    path.write_text("not a checkpoint")
    assert main(["export", str(path)]) == 2
    assert "cannot be read as a checkpoint" in capsys.readouterr().err
    torch.save({"format": 99}, path)
    assert main(["export", str(path)]) == 2
    assert "not a checkpoint of this package" in capsys.readouterr().err


def test_export_measure_is_for_packed_files(run_folder, capsys):
    assert main(["export", str(run_folder), "--to", "onnx", "--measure"]) == 2
    assert "--measure is for packed files" in capsys.readouterr().err
