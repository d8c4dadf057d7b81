"""The answers of stored runs: read back as written, and refused with a sentence if they are not."""

import numpy as np
import pytest

from surge.errors import ConfigError
from surge.study.glue.predictions import has_predictions, read_predictions
from surge.study.stored_runs import open_run, store
from surge.train.run import PREDICTIONS
from tests.study.run_folders import write_glue

ANSWERS, LABELS = [1, 0, 1, 1], [1, 1, 1, 0]


@pytest.fixture
def path(tmp_path):
    return write_glue(tmp_path / "runs", logits=ANSWERS, labels=LABELS)


def change(path, **arrays):
    """Write the file anew with other arrays; None leaves one out."""
    held = dict(np.load(path / PREDICTIONS))
    changed = {**held, **arrays}
    np.savez(path / PREDICTIONS, **{k: v for k, v in changed.items() if v is not None})


def test_answers_are_read_as_written(path):
    found = read_predictions(open_run(path))
    assert found.answers.tolist() == ANSWERS and found.labels.tolist() == LABELS


def test_scores_have_one_output(tmp_path):
    path = write_glue(tmp_path, "stsb-bit", logits=[0.5, 2.0, 4.5], labels=[0.0, 3.0, 5.0])
    assert read_predictions(open_run(path)).answers.tolist() == [0.5, 2.0, 4.5]


def test_part_that_decides_is_taken_alone(tmp_path):
    path = write_glue(tmp_path, "mnli-bit", logits=[0, 1, 2], labels=[0, 1, 1])
    held = dict(np.load(path / PREDICTIONS))
    twice = {name: np.concatenate([array, array]) for name, array in held.items()}
    twice["section"][3:] = 1
    twice["labels"][3:] = 0
    change(path, **twice)
    found = read_predictions(open_run(path))
    assert found.answers.tolist() == [0, 1, 2] and found.labels.tolist() == [0, 1, 1]


def test_kept_runs_have_their_predictions(path, tmp_path):
    kept = store(path, tmp_path / "kept")
    assert (kept / PREDICTIONS).read_bytes() == (path / PREDICTIONS).read_bytes()
    assert read_predictions(open_run(kept)).answers.tolist() == ANSWERS


def test_unfinished_runs_have_none(path):
    assert has_predictions(open_run(path))
    lines = (path / "metrics.jsonl").read_text().splitlines(True)
    (path / "metrics.jsonl").write_text("".join(lines[:-1]))
    assert not has_predictions(open_run(path))


def refusal(path):
    with pytest.raises(ConfigError) as caught:
        read_predictions(open_run(path))
    text = str(caught.value)
    assert str(path / PREDICTIONS) in text and "surge report RUN --keep" in text
    return text


@pytest.mark.parametrize("content", [b"", b"PK\x03\x04 torn", b"no archive", b"\x93NUMPY\x01\x00v"])
def test_damaged_file_is_named(path, content):
    (path / PREDICTIONS).write_bytes(content)
    refusal(path)


def test_cut_off_file_is_named(path):
    whole = (path / PREDICTIONS).read_bytes()
    for size in range(0, len(whole), 97):
        (path / PREDICTIONS).write_bytes(whole[:size])
        refusal(path)


def test_one_array_is_no_archive(path):
    np.save(path / "one.npy", np.ones(3))
    (path / "one.npy").rename(path / PREDICTIONS)
    refusal(path)


def test_pickled_objects_are_not_loaded(path):
    change(path, labels=np.array([{"a": 1}] * 4, dtype=object))
    assert "allow_pickle=False" in refusal(path)


@pytest.mark.parametrize("name", ["logits", "labels", "section"])
def test_missing_array_is_named(path, name):
    change(path, **{name: None})
    assert name in refusal(path)


@pytest.mark.parametrize(
    "arrays, words",
    [
        ({"logits": np.ones((4, 3), np.float32)}, "mrpc has 2 outputs"),
        ({"logits": np.ones((5, 2), np.float32)}, "[5, 2], [4], [4]"),
        ({"section": np.zeros(3, np.uint8)}, "[4, 2], [4], [3]"),
        ({"labels": np.float64(1)}, "not all arrays of numbers"),
        ({"labels": np.array(["1"] * 4)}, "not all arrays of numbers"),
        ({"logits": np.full((4, 2), np.nan, np.float32)}, "not finite"),
        ({"section": np.ones(4, np.uint8)}, "no example decides"),
    ],
)
def test_foreign_arrays_are_refused(path, arrays, words):
    change(path, **arrays)
    assert words in refusal(path)


def test_predictions_of_another_run_are_refused(path):
    change(path, logits=np.eye(2, dtype=np.float32)[LABELS])
    assert "it scores 100.0000, and metrics.jsonl says 50.0 after" in refusal(path)
