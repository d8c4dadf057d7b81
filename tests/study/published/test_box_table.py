"""The list of the networks in the package says what their files say."""

import pytest

from surge.pretrained import add_facts, list_pretrained, pretrained_path
from surge.study.published import box_table


def test_every_shipped_file_has_a_row(tmp_path):
    rows = box_table.section(tmp_path).splitlines()[2:]
    assert [row.split(" | ")[0].removeprefix("| ") for row in rows] == list_pretrained()
    for name, row in zip(list_pretrained(), rows, strict=True):
        assert f"| {pretrained_path(name).stat().st_size:,} |" in row


def test_a_row_says_what_its_file_says(tmp_path, monkeypatch):
    path = tmp_path / "one.surge"
    path.write_bytes(pretrained_path("resnet20-cifar10").read_bytes())
    facts = {"recipe": "a", "accuracy": "12.34", "accuracy_torch": "12.35", "tested_on": "3 cats"}
    add_facts(path, facts)
    monkeypatch.setattr(box_table, "list_pretrained", lambda: ["one"])
    monkeypatch.setattr(box_table, "pretrained_path", lambda name: tmp_path / f"{name}.surge")
    last = box_table.section(tmp_path).splitlines()[-1]
    assert last == f"| one | a | {path.stat().st_size:,} | 12.34 | 12.35 | 3 cats |"


@pytest.mark.parametrize("name", [n for n in list_pretrained() if "-surge-" in n])
def test_a_network_trained_with_surge_stands_beside_the_one_without(name):
    assert name.replace("-surge-", "-") in list_pretrained()
