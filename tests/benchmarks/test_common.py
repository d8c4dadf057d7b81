"""benchmarks/common.py in small, with one process for all rows."""

import json
import pickle
from contextlib import contextmanager

import pytest
import torch

from benchmarks import common
from surge.errors import ConfigError
from surge.recipes import get_recipe, list_recipes
from surge.study.bench.elsewhere import built
from surge.study.published import pages

PAIR = ("resnet20-bnn", "resnet20-bnn-surge")


class Sent:
    """A row of this process that is asked as if it were in another."""

    def __init__(self, row):
        self.row = row

    def ask(self, function):
        return copied(self.row.ask(copied(function)))


def copied(value):
    return pickle.loads(pickle.dumps(value))


@contextmanager
def built_here(builders, *, jobs, **options):
    """Build here what belongs in processes of its own; all that would be sent there is copied."""
    assert jobs > 1
    with built(copied(builders), jobs=1, **options) as rows:
        yield {name: Sent(row) for name, row in rows.items()}


def test_rows_are_measured_in_turns_and_stored(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(common, "WARM", 1)
    monkeypatch.setattr(common, "built", built_here)
    words = ["--rows", *PAIR, "--block", "1", "--rounds", "1", "--batch", "4", "--images", "8"]
    words += ["--device", "cpu", "--results", str(tmp_path / "results"), "--commit", "abc"]
    assert common.main(words) == 0
    stored = (tmp_path / "results" / "common_speed.jsonl").read_text().splitlines()
    lines = [json.loads(line) for line in stored]
    assert [(line["row"], line["method"], line["surge"]) for line in lines] == [
        (PAIR[0], "bnn", False),
        (PAIR[1], "bnn", True),
    ]
    for line in lines:
        assert line["images_per_s"] == pytest.approx(4e3 / line["step_ms"], abs=0.06)
        assert line["commit"] == "abc" and line["torch"] == str(torch.__version__)
        assert line["steps"] == "eager" and line["peak_mib"] is None and line["hardware"]
    assert capsys.readouterr().out.count("| resnet20-bnn") == 2
    assert common.main([*words, "--missing"]) == 0  # both are there: nothing is built
    assert (tmp_path / "results" / "common_speed.jsonl").read_text().splitlines() == stored
    made = pages.methods("common", tmp_path / "results")
    assert "| minus its base, 95 % | images/s | MiB |" in made
    assert (
        f"| {PAIR[0]} | 60 | - | open | open | 0 | - | {lines[0]['images_per_s']:,.0f} | open |"
        in made
    )


def test_unknown_row_is_refused(tmp_path):
    with pytest.raises(ConfigError, match="resnet20-recu"):
        common.main(["--rows", "resnet20-recuu", "--results", str(tmp_path)])


def test_groups_keep_rows_of_a_method_together():
    recipes = [get_recipe(name) for name in list_recipes("common")]
    groups = common.grouped(recipes, 12)
    assert sorted(r.row for group in groups for r in group) == sorted(r.row for r in recipes)
    assert all(len(group) <= 12 for group in groups)
    homes = [{r.method.name for r in group} for group in groups]
    assert sum(len(home) for home in homes) == len(set().union(*homes))
