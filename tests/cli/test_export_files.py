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
