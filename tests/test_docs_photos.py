"""Commands of the pages about ImageNet, in one process, with narrow networks and few pictures."""

import shlex
from pathlib import Path

import pytest

from surge.cli import _planning, main
from surge.recipes import get_recipe
from tests.data.trees import make_tree
from tests.test_docs import blocks, commands
from tests.train.photo_runs import narrow

DOCS = Path(__file__).parents[1] / "docs"
SHORTER = {
    "train": ("--epochs", "1", "--size", "32", "--limit", "10", "--device", "cpu"),
    "reproduce": ("--epochs", "1", "--size", "32", "--rows", "onestage-bireal", "--device", "cpu"),
}
"""What makes a command of days one of seconds; it stays the same command."""


def short(name, changes):
    """A teacher as short as its students."""
    return _planning._changed(get_recipe(name), changes)


@pytest.mark.parametrize("page", ["imagenet.md", "distributed.md"])
def test_commands_of_one_process_run(page, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(_planning, "_teacher", short)
    for name, count, size in (("imagenet", 1000, 40), ("imagenette96", 10, 96)):
        classes = [f"n{number:04d}" for number in range(count)]
        make_tree(tmp_path / "srv" / name, classes, train=1, val=1, size=(size, size))
    text = (DOCS / page).read_text(encoding="utf-8")
    lines = [line for lang, body in blocks(text) if lang == "bash" for line in commands(body)]
    own = [shlex.split(line)[1:] for line in lines if line.startswith("surge ")]
    with narrow():
        for words in own:
            placed = [word.replace("/srv", str(tmp_path / "srv")) for word in words]
            assert main([*placed, *SHORTER[words[0]]]) == 0, words
    assert len(own) >= 3
