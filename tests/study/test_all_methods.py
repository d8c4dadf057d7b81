"""All methods of one table together: which are pairs, and what their mean difference is."""

import pytest

from surge.study.all_methods import over_methods, over_seeds, pairs
from tests.study.stored import common


def test_methods_come_by_accuracy_with_their_pairs():
    found = pairs("common", common(recu=(82.0, 82.5), bnn=(74.0, 75.5), binaryconnect=(85.0,)))
    assert [pair.name for pair in found] == ["bnn", "recu", "binaryconnect"]
    assert [pair.difference and pair.difference.mean for pair in found] == [1.5, 0.5, None]


def test_a_variant_and_a_row_without_its_base_are_no_method():
    stored = common(recu=(82.0, 82.5))
    more = common(dsq=(70.0, 71.0))[1:]
    variant = common(**{"recu-surge-tied": (99.0,)})
    assert [pair.name for pair in pairs("common", [*stored, *more, *variant])] == ["recu"]


def test_every_method_counts_once_however_many_seeds_it_has():
    stored = [*common(recu=(82.0, 82.5)), *common(recu=(82.0, 82.5), seed=1)]
    over = over_methods(pairs("common", [*stored, *common(bnn=(74.0, 75.5))]))
    assert (over.n, over.mean) == (2, pytest.approx(1.0))
    assert over_methods(pairs("common", stored)) is None


def test_seeds_are_those_that_all_methods_have():
    """Seed 0: (1.5 + 0.5) / 2; seed 1: (1.0 + 0.0) / 2; seed 2 has one method alone."""
    stored = common(recu=(82.0, 82.5), bnn=(74.0, 75.5), binaryconnect=(85.0,))
    stored += common(recu=(82.0, 82.0), bnn=(74.0, 75.0), seed=1)
    over = over_seeds(pairs("common", [*stored, *common(recu=(82.0, 99.0), seed=2)]))
    assert (over.n, over.mean) == (2, pytest.approx(0.75))
    assert over.std == pytest.approx(0.5 * 2**-0.5)
    assert over_seeds([]) is None
