"""Commands of the pages about deploying and speed, on small work: they are run, not only read."""

import shlex
from pathlib import Path

import pytest

from surge.cli import main
from tests.runtime.building import import_engine
from tests.test_docs import blocks, commands

DOCS = Path(__file__).parents[1] / "docs"
SHORTER = {
    ("export",): (),
    ("bench", "infer"): ("--size", "96", "--seconds", "0.05", "--out", "bench"),
    ("bench", "train"): (
        *("--device", "cpu", "--batch", "2", "--seconds", "0.01"),
        *("--variants", "plain", "surge", "--out", "bench"),
    ),
}
"""What makes a command one of seconds; it stays the same command."""


def run_all(page, given):
    """Run every ``surge`` line of a page; ``given`` replaces words that a reader replaces."""
    text = (DOCS / page).read_text(encoding="utf-8")
    lines = [line for lang, body in blocks(text) if lang == "bash" for line in commands(body)]
    done = 0
    for _, *words in map(shlex.split, lines):
        more = next(v for key, v in SHORTER.items() if tuple(words[: len(key)]) == key)
        assert main([*(given.get(word, word) for word in words), *more]) == 0, words
        done += 1
    return done


@pytest.fixture
def here(tmp_path, monkeypatch):
    import_engine()
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_deploying_page_runs(here):
    words = ["--epochs", "1", "--limit", "96", "--out", "run", "--device", "cpu"]
    assert main(["train", "digits-cnn-recu-surge", *words]) == 0
    assert run_all("deploying.md", {"CHECKPOINT": "run"}) == 2
    assert (here / "src/surge/weights/resnet20-cifar10.surge").stat().st_size > 1_000


def test_performance_page_runs(here):
    assert run_all("performance.md", {}) == 1
    assert (here / "bench.json").exists()
