"""GLUE through `datasets`: what it gives is written as official files, and read from there."""

import sys
import types

import pytest

from surge.cli import main
from surge.data import glue_hub
from surge.data.glue import get_task, read_examples

NAMES = {
    "mrpc": ["not_equivalent", "equivalent"],
    "rte": ["entailment", "not_entailment"],
    "mnli": ["entailment", "neutral", "contradiction"],
    "cola": ["unacceptable", "acceptable"],
    "stsb": None,
}


class Rows(list):
    def __init__(self, rows, names):
        super().__init__(rows)
        label = types.SimpleNamespace() if names is None else types.SimpleNamespace(names=names)
        self.features = {"label": label}


def some_rows(task):
    texts = glue_hub.TEXTS.get(task.name, task.sentences)
    labels = [0.0, 2.5, 5.0] if NAMES[task.name] is None else range(len(NAMES[task.name]))
    rows = [
        {**{name: f"{name}\tof\nrow {number}" for name in texts}, "label": label, "idx": number}
        for number, label in enumerate(labels)
    ]
    return Rows(rows, NAMES[task.name])


@pytest.fixture
def hub(monkeypatch):
    """A `datasets` that knows a few rows of every task, and what was asked of it."""
    asked = []

    def load_dataset(path, name, *, split):
        asked.append((path, name, split))
        return some_rows(get_task(name))

    monkeypatch.setitem(sys.modules, "datasets", types.SimpleNamespace(load_dataset=load_dataset))
    return asked


@pytest.mark.parametrize(
    ("name", "labels"),
    [
        ("mrpc", (0.0, 1.0)),
        ("rte", (0.0, 1.0)),
        ("mnli", (1.0, 2.0, 0.0)),  # our order is that of the alphabet
        ("cola", (0.0, 1.0)),
        ("stsb", (0.0, 2.5, 5.0)),
    ],
)
def test_files_are_read_as_what_was_given(name, labels, tmp_path, hub):
    task = get_task(name)
    paths = glue_hub.fetch(task, tmp_path)
    assert [path.stem for path in paths] == ["train", *task.tests]
    found = read_examples(paths[-1], task)
    assert found.labels == labels
    texts = glue_hub.TEXTS.get(name, task.sentences)
    assert found.texts[1] == tuple(f"{text} of row 1" for text in texts)
    assert {split for *_, split in hub} == {glue_hub.PARTS[path.stem] for path in paths}


def test_files_that_are_there_are_kept(tmp_path, hub):
    task = get_task("rte")
    glue_hub.fetch(task, tmp_path)
    asked = len(hub)
    (tmp_path / "glue" / "RTE" / "dev.tsv").unlink()
    glue_hub.fetch(task, tmp_path)
    assert len(hub) == asked + 1


def test_command_fetches_and_lists(tmp_path, hub, capsys):
    assert main(["data", "glue", "--tasks", "rte", "mrpc", "--data", str(tmp_path)]) == 0
    assert str(tmp_path / "glue" / "RTE" / "dev.tsv") in capsys.readouterr().out.replace("\n", "")
    main(["data", "--data", str(tmp_path)])
    assert "mrpc, rte" in capsys.readouterr().out


def test_without_the_package_the_error_says_what_to_do(tmp_path, monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "datasets", None)
    assert main(["data", "glue", "--data", str(tmp_path)]) == 2
    err = capsys.readouterr().err
    assert "pip install datasets" in err and err.count("\n") == 1


def test_without_a_network_nothing_is_left_behind(tmp_path, monkeypatch, capsys):
    def refuse(*_, **__):
        raise ConnectionError("no network")

    monkeypatch.setitem(sys.modules, "datasets", types.SimpleNamespace(load_dataset=refuse))
    assert main(["data", "glue", "--tasks", "rte", "--data", str(tmp_path)]) == 2
    assert "Put the official file at" in capsys.readouterr().err
    assert not list(tmp_path.rglob("*.*"))


def test_a_torn_write_leaves_no_file(tmp_path, monkeypatch):
    class Torn(Rows):
        def __iter__(self):
            yield self[0]
            raise RuntimeError("gone")

    torn = Torn(some_rows(get_task("rte")), NAMES["rte"])
    fake = types.SimpleNamespace(load_dataset=lambda *_, **__: torn)
    monkeypatch.setitem(sys.modules, "datasets", fake)
    with pytest.raises(RuntimeError, match="gone"):
        glue_hub.fetch(get_task("rte"), tmp_path)
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == []
