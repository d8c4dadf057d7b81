"""docs/distributed.md: its commands exist, and name recipes and files that exist."""

import re
from pathlib import Path

import pytest

from surge.cli import main
from surge.recipes import get_recipe

ROOT = Path(__file__).parents[1]
TEXT = (ROOT / "docs" / "distributed.md").read_text(encoding="utf-8")
COMMANDS = re.findall(r"surge train (?!--resume)(\S+)", TEXT)


def test_recipes_of_the_page_exist():
    assert len(COMMANDS) >= 5
    for name in COMMANDS:
        assert get_recipe(name).name == name


def test_files_of_the_page_exist():
    for path in re.findall(r"`((?:tests|benchmarks)/[^`]+)`", TEXT):
        assert (ROOT / path).is_file(), path


@pytest.mark.parametrize("flag", sorted(set(re.findall(r"`(--[a-z-]+)", TEXT))))
def test_options_of_the_page_exist(flag, capsys):
    if flag in ("--max-restarts", "--rdzv-id"):  # torchrun's
        return
    assert main(["train", "--help"]) == 0
    assert flag in capsys.readouterr().out
