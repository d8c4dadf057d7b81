"""benchmarks/loader.py on a few small photographs."""

import json

import torch

from benchmarks import loader
from surge.data.folders import scan_tree
from surge.data.pictures import read_picture
from tests.data.trees import make_tree


def test_every_loader_is_measured_and_stored(tmp_path, monkeypatch, capsys):
    classes = [f"n{i}" for i in range(10)]
    tree = make_tree(tmp_path / "tree", classes, train=4, val=1, size=(96, 96))
    monkeypatch.setattr(loader, "worker_count", lambda: 2)
    monkeypatch.setattr(loader, "LONG", 1000)
    words = ["--data", tree, "--size", 32, "--batch", 8, "--seconds", 0.1]
    loader.main([*map(str, words), "--results", str(tmp_path), "--device", "cpu"])
    stored = [json.loads(x) for x in (tmp_path / "loader.jsonl").read_text().splitlines()]
    assert [(row["what"], row["workers"]) for row in stored] == [
        ("squares on the device", 0),
        ("files", 1),
        ("files", 2),
        ("files of 500x375", 2),
    ]
    assert all(row["images_per_s"] > 0 and row["size"] == 32 for row in stored)
    assert capsys.readouterr().out.count("images/s") == 4


def test_enlarged_files_have_the_usual_size_and_their_labels(tmp_path, monkeypatch):
    tree = make_tree(tmp_path / "tree", train=3)
    files, _ = scan_tree(tree)
    monkeypatch.setattr(loader, "ENLARGED", 4)
    large = loader.enlarged(files, tmp_path)
    assert [read_picture(large.root / name).size for name in large.files] == [(500, 375)] * 4
    assert torch.equal(large.labels, files.first(4).labels)


def test_long_epoch_repeats_files_with_their_labels(tmp_path, monkeypatch):
    files, _ = scan_tree(make_tree(tmp_path, train=3))
    monkeypatch.setattr(loader, "LONG", 10)
    long = loader.repeated(files)
    assert len(long) == len(long.labels) == 18
    assert long.files[9:] == files.files and torch.equal(long.labels[9:], files.labels)


def test_rate_counts_full_batches():
    found = loader.rate(iter(range(10**6)), 8, 0.01, torch.device("cpu"))
    assert found > 8
