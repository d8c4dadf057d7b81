"""``surge export``: files that do not fit, and what a packed file says it was tested on."""

import pytest
import torch

from surge.cli import main
from surge.train.checkpoint import FORMAT
from tests.runtime.building import import_engine


def refused(path, capsys, **state):
    """Return what is said about a checkpoint file."""
    torch.save({"format": FORMAT, **state}, path)
    assert main(["export", str(path)]) == 2
    return " ".join(capsys.readouterr().err.split())


def test_checkpoint_of_a_bert_is_refused(tmp_path, capsys):
    said = refused(tmp_path / "x.pt", capsys, recipe="glue-mrpc-bit", model={})
    assert "x.pt holds glue-mrpc-bit, and only the folder of its run says which BERT" in said


@pytest.mark.parametrize("model", [{"model": {"fc.weight": torch.zeros(1)}}, {}])
def test_checkpoint_of_another_network_is_refused(tmp_path, capsys, model):
    said = refused(tmp_path / "x.pt", capsys, recipe="digits-cnn-recu", **model)
    assert "x.pt does not fit the model of digits-cnn-recu" in said


def test_checkpoint_without_a_recipe_is_refused(tmp_path, capsys):
    assert "recipe" in refused(tmp_path / "x.pt", capsys)


def train(out, *words):
    places = ["--device", "cpu", "--out", str(out), "--results", str(out.parent / "results")]
    assert main(["train", *words, "--epochs", "1", *places]) == 0


def test_measured_file_says_what_was_held_out(tmp_path, capsys):
    engine = import_engine()
    train(tmp_path / "run", "digits-cnn-recu", "--held-out")
    assert main(["export", str(tmp_path / "run"), "--measure"]) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert "top-1 on 143 images (digits, held out):" in said
    tested = engine.load(tmp_path / "run" / "model.surge").metadata("tested_on")
    assert tested == "digits, held out, 143 images"


def test_run_whose_layers_were_chosen_by_images_is_exported(tmp_path):
    train(tmp_path / "run", "digits-cnn-recu-surge-salient", "--limit", "64")
    assert main(["export", str(tmp_path / "run")]) == 0


@pytest.fixture(scope="module")
def run_folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs") / "run"
    train(folder, "digits-cnn-recu", "--limit", "64")
    return folder


def test_checkpoint_is_not_written_over(run_folder, tmp_path, capsys):
    (checkpoint,) = (run_folder / "checkpoints").glob("*.pt")
    content = checkpoint.read_bytes()
    plain, packed, beside = (tmp_path / name for name in ("one.pt", "model.surge", "model.bin"))
    for path in (plain, packed, beside):
        path.write_bytes(content)
    (tmp_path / "link.pt").symlink_to(plain)
    (tmp_path / "link.surge").symlink_to(packed)
    for words in (
        [plain, "--out", plain],
        [tmp_path / "link.pt", "--out", plain],
        [packed],  # by default
        [tmp_path / "link.surge", "--out", packed],
        [beside, "--to", "openvino"],  # which writes a second file
    ):
        assert main(["export", *map(str, words)]) == 2
        assert "would be written over: choose another file" in capsys.readouterr().err
    assert all(path.read_bytes() == content for path in (plain, packed, beside))


@pytest.mark.parametrize("name", ["config.yaml", "metrics.jsonl", "checkpoints/epoch-00001.pt"])
def test_files_of_a_run_are_not_written_over(run_folder, capsys, name):
    before = (run_folder / name).read_bytes()
    assert main(["export", str(run_folder), "--out", str(run_folder / name)]) == 2
    assert f"{name} is there and does not end in .surge" in capsys.readouterr().err
    assert (run_folder / name).read_bytes() == before


@pytest.mark.parametrize(
    ("to", "name", "other"),
    [
        ("surge", "x.onnx", "onnx"),
        ("surge", "x.xml", "openvino"),
        ("onnx", "x.surge", "surge"),
        ("openvino", "x.surge", "surge"),
        ("openvino", "x.onnx", "onnx"),
    ],
)
def test_name_of_another_engines_file_is_refused(run_folder, tmp_path, capsys, to, name, other):
    words = ["--to", to, "--out", str(tmp_path / name)]
    assert main(["export", str(run_folder), *words]) == 2
    said = capsys.readouterr().err
    assert said.count("\n") == 1 and f"{name} is named as a file of --to {other}" in said
    assert list(tmp_path.iterdir()) == []


def test_measured_file_is_as_large_as_is_said(run_folder, tmp_path, capsys):
    import_engine()
    target = tmp_path / "measured.surge"
    assert main(["export", str(run_folder), "--out", str(target), "--measure"]) == 0
    assert f"{target}: {target.stat().st_size:,} bytes (" in capsys.readouterr().out
