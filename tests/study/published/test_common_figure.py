"""The picture of the table ``common``: pairs in order, methods pooled, nothing without pairs."""

import csv

import pytest

from surge.study.published.common_figure import PICTURE, pairs, pooled, renew, summary
from surge.study.statistics import estimate
from surge.study.tables import TableRow


def row(name, last, base=None):
    difference = None if base is None else estimate([last - base])
    return TableRow(name, 60, "cifar10, test set", None, estimate([last]), None, difference)


ROWS = [
    row("resnet20-recu", 82.0),
    row("resnet20-recu-surge", 82.5, 82.0),
    row("resnet20-bnn", 74.0),
    row("resnet20-bnn-surge", 75.5, 74.0),
    row("resnet20-binaryconnect", 85.0),
]


def test_methods_come_by_accuracy_with_their_pairs():
    found = pairs(ROWS)
    assert [pair.name for pair in found] == ["bnn", "recu", "binaryconnect"]
    assert [pair.with_surge and pair.with_surge.mean for pair in found] == [75.5, 82.5, None]


def test_every_method_counts_once():
    over = pooled(pairs(ROWS))
    assert (over.n, over.mean) == (2, pytest.approx(1.0))
    assert "over 2 methods, each counted once: +1.00 points" in summary(ROWS)


def test_an_open_row_is_no_method():
    open_row = TableRow("resnet20-rad", 60, "cifar10, test set", None, None, None, None)
    assert pairs([*ROWS, open_row]) == pairs(ROWS)


def test_picture_has_its_numbers_beside_it(tmp_path):
    renew(ROWS, tmp_path)
    with (tmp_path / PICTURE).with_suffix(".csv").open() as file:
        lines = list(csv.DictReader(file))
    assert [(line["method"], line["difference"]) for line in lines] == [
        ("bnn", "1.5"),
        ("recu", "0.5"),
        ("binaryconnect", ""),
    ]
    assert (tmp_path / PICTURE).stat().st_size > 10_000


def test_one_pair_says_nothing_and_an_old_picture_goes(tmp_path):
    renew(ROWS, tmp_path)
    assert summary(ROWS[:2]) == ""
    assert renew(ROWS[:2], tmp_path) == []
    assert not list((tmp_path / PICTURE).parent.iterdir())
