"""The table of docs/methods.md: every published method has a row, every named test exists."""

import inspect
import re
from pathlib import Path

import pytest

from surge.method import check_options, get_method
from tests.nets import METHODS, published_methods, registered_methods

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "methods.md").read_text()
ROWS = [
    [cell.strip() for cell in line.strip("|").split("|")]
    for line in PAGE.splitlines()
    if line.startswith("| ") and not line.startswith(("| method |", "| --- |"))
]


def test_every_published_method_has_a_row():
    assert published_methods() <= {row[0] for row in ROWS} - {"all"} <= set(METHODS)


@registered_methods
def test_every_method_says_where_it_leaves_its_paper(method):
    assert "Paper vs here:" in get_method(method).__doc__


def test_every_named_test_exists():
    defined = {
        name
        for path in (ROOT / "tests").rglob("test_*.py")
        for name in re.findall(r"^def (test_\w+)", path.read_text(), re.MULTILINE)
    }
    named = [re.fullmatch(r"`(test_\w+)`", row[3]) for row in ROWS]
    assert all(named), [row[3] for row, found in zip(ROWS, named, strict=True) if not found]
    assert [found[1] for found in named if found[1] not in defined] == []


@pytest.mark.parametrize("row", ROWS, ids=lambda row: f"{row[0]}-{row[3].strip('`')}")
def test_every_flag_of_the_table_is_an_option(row):
    flags = re.findall(r"(?:flag|option) `(\w+)", row[2])
    if row[0] != "all":
        check_options(get_method(row[0]), dict.fromkeys(flags))
    assert len(row) == 4


DEFAULTS = {
    "bireal": {"magnitude_aware": False},
    "xnor": {"gradient": "paper", "input_scale": True},
    "dorefa": {"unit_inputs": False, "keeps_size": False},
    "rbonn": {"rank_filters": True},
    "rbnn": {"detach_rotation": False},
    "ida": {"forgets_sign": False},
    "binaryconnect": {"stochastic": False},
    "fda": {"layer_scale": False},
}
"""What the table says of a method without its flags."""


def test_quirks_are_off_unless_their_flag_is_given():
    flags = {(row[0], flag) for row in ROWS for flag in re.findall(r"flag `(\w+)", row[2])}
    assert flags == {(method, flag) for method, known in DEFAULTS.items() for flag in known}
    for method, known in DEFAULTS.items():
        parameters = inspect.signature(get_method(method).__init__).parameters
        assert {flag: parameters[flag].default for flag in known} == known
