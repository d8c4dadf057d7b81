"""benchmarks/common.py in small, in processes of their own."""

import json

import pytest
import torch

from benchmarks import common
from surge.errors import ConfigError
from surge.recipes import get_recipe, list_recipes
from surge.study import published
from surge.study.elsewhere import FailedElsewhereError

PAIR = ("resnet20-bnn", "resnet20-bnn-surge")


def test_rows_are_measured_in_turns_and_stored(tmp_path, capsys):
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
        assert line["images_per_s"] == pytest.approx(4e3 / line["step_ms"], rel=1e-3)
        assert line["commit"] == "abc" and line["torch"] == str(torch.__version__)
        assert line["steps"] == "eager" and line["peak_mib"] is None and line["hardware"]
    assert capsys.readouterr().out.count("| resnet20-bnn") == 2
    assert common.main([*words, "--missing"]) == 0  # both are there: nothing is built
    assert (tmp_path / "results" / "common_speed.jsonl").read_text().splitlines() == stored
    made = published.stored_table("common", tmp_path / "results")
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


class Fake:
    """A row that is measured without a process, and may break down."""

    def __init__(self, log, name, *, breaks=False):
        self.log, self.name, self.breaks = log, name, breaks

    def ask(self, function):
        if function is common.facts_of:
            return common.Facts(None, "eager", "fp32", 4, "X")
        self.log.append(self.name)
        if self.breaks:
            raise FailedElsewhereError("gone")
        return float(len(self.log))


def test_a_row_that_breaks_down_does_not_stop_the_others():
    log, failures = [], {}
    workers = {"a": Fake(log, "a"), "x": Fake(log, "x", breaks=True), "b": Fake(log, "b")}
    found = common.timed(workers, 3, 1, failures)
    assert log == ["a", "x", "b", "a", "b", "a", "b"]
    assert failures == {"x": "gone"} and found["a"][1] == 4.0 and list(found) == ["a", "b"]
