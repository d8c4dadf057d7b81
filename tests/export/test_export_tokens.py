"""``surge export`` of a run on sentences."""

import numpy as np
import pytest

from surge.cli import main
from tests.berts import save_tiny, write_task

TEACHER, STUDENT = "runs/glue-mrpc-teacher-seed0", "runs/glue-mrpc-bit-surge-seed0"


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """Return a folder with a tiny teacher and its binary student, both hardly trained."""
    root = tmp_path_factory.mktemp("runs")
    (root / "bert").mkdir()
    save_tiny(root / "bert")
    write_task(root, "mrpc", {"train": 16, "dev": 8})
    shared = ["--model", str(root / "bert"), "--data", str(root), "--device", "cpu"]
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(root)
        assert main(["train", "glue-mrpc-teacher", *shared, "--epochs", "1"]) == 0
        words = ["train", "glue-mrpc-bit-surge", *shared, "--teacher", TEACHER, "--epochs", "1"]
        assert main(words) == 0
    return root


def test_run_on_sentences_is_packed(engine, runs, monkeypatch, capsys):
    monkeypatch.chdir(runs)
    assert main(["export", STUDENT, "--rest", "fp16"]) == 0
    assert "model.surge" in capsys.readouterr().out
    loaded = engine.load(runs / STUDENT / "model.surge")
    assert loaded.input_shape == (3, 128) and loaded.output_shape == (2,)
    assert loaded.classes == ["0", "1"] and loaded.metadata("method") == "bit"
    assert np.isfinite(loaded.run(np.ones((2, 3, 128)))).all()


def test_what_cannot_be_exported_says_so(runs, monkeypatch, capsys):
    monkeypatch.chdir(runs)
    assert main(["export", STUDENT, "--to", "onnx"]) == 2
    assert "our engine only" in capsys.readouterr().err
    assert main(["export", TEACHER]) == 2
    assert "is a float BERT" in capsys.readouterr().err
