"""The picture of all methods: numbers beside it, what it says in words, nothing without pairs."""

import csv

from surge.study.all_methods import pairs
from surge.study.published.methods_figure import picture, renew, summary
from tests.study.stored import common

STORED = common(recu=(82.0, 82.5), bnn=(74.0, 75.5), binaryconnect=(85.0,))
PICTURE = picture("common")


def test_words_have_both_intervals_once_there_are_seeds():
    """Means of 1.0 and 0.5; t of one degree of freedom: 0.75 +- 12.706 * 0.25."""
    assert summary("common", pairs("common", STORED)).startswith(
        "SURGE minus base, mean of 2 methods: +1.00 points; 95 % interval over methods "
        "[-5.35, +7.35], not over seeds.\n"
    )
    more = [*STORED, *common(recu=(82.0, 82.0), bnn=(74.0, 75.0), seed=1)]
    assert "+0.75 points" in (words := summary("common", pairs("common", more)))
    assert "over the 2 seeds that all have +0.75 [-2.43, +3.93]" in words
    assert f"]({PICTURE})" in words


def test_picture_has_its_numbers_beside_it(tmp_path):
    renew("common", pairs("common", STORED), tmp_path)
    with (tmp_path / PICTURE).with_suffix(".csv").open() as file:
        lines = list(csv.DictReader(file))
    assert [(line["method"], line["with_surge"], line["difference"]) for line in lines] == [
        ("bnn", "75.5", "1.5"),
        ("recu", "82.5", "0.5"),
        ("binaryconnect", "", ""),
    ]
    assert (tmp_path / PICTURE).stat().st_size > 10_000


def test_one_pair_says_nothing_and_an_old_picture_goes(tmp_path):
    renew("common", pairs("common", STORED), tmp_path)
    one = pairs("common", common(recu=(82.0, 82.5)))
    assert summary("common", one) == ""
    assert renew("common", one, tmp_path) == []
    assert not list((tmp_path / PICTURE).parent.iterdir())
