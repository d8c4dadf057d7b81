"""Result tables against numbers worked out by hand."""

import math

import pytest

from surge.recipes import get_recipe, overridden
from surge.study.tables import base_row, make_rows, markdown, stored_rows
from tests.study.stored import result

PLAIN, SURGE = "resnet20-recu", "resnet20-recu-surge"


def rows_of(*rows, results, **changes):
    recipes = [overridden(get_recipe(f"cifar10-{row}"), changes) for row in rows]
    return make_rows(recipes, results)


def paired(plain, surged, **fields):
    return [
        *(result(PLAIN, seed, value, **fields) for seed, value in enumerate(plain)),
        *(result(SURGE, seed, value, **fields) for seed, value in enumerate(surged)),
    ]


def test_a_seed_in_several_precisions_is_one_pair():
    stored = [
        result(row, 0, last, precision=precision)
        for precision, shift in (("bf16", 0.1), ("fp32", 0.3))
        for row, last in ((PLAIN, 87.0), (SURGE, 87.0 + shift))
    ]
    (surged,) = rows_of(SURGE, results=stored)
    assert (surged.difference.n, surged.difference.mean) == (1, pytest.approx(0.3))


def test_difference_is_paired_and_has_its_interval():
    """Differences 0.5, 0.1, 0.3: mean 0.3, std 0.2, half width 4.3027 * 0.2 / sqrt(3) = 0.4968."""
    stored = paired([87.0, 87.4, 87.2], [87.5, 87.5, 87.5])
    plain, surged = rows_of(PLAIN, SURGE, results=stored)
    assert plain.last.mean == pytest.approx(87.2)
    assert plain.last.std == pytest.approx(0.2)
    assert plain.best.mean == pytest.approx(87.45)
    assert plain.difference is None
    assert surged.last.std == 0
    assert surged.difference.mean == pytest.approx(0.3)
    assert surged.difference.std == pytest.approx(0.2)
    assert surged.difference.half_width == pytest.approx(0.4968, abs=1e-4)
    assert markdown([plain, surged]).splitlines() == [
        "| row | epochs | paper | last epoch | best epoch | n | minus its base, 95 % |",
        "| --- | ---: | ---: | ---: | ---: | ---: | ---: |",
        "| resnet20-recu | 600 | 87.4 | 87.20 +- 0.20 | 87.45 +- 0.20 | 3 | - |",
        "| resnet20-recu-surge | 600 | 88.0 | 87.50 +- 0.00 | 87.75 +- 0.00 | 3 | "
        "+0.30 [-0.20, +0.80] (3 pairs) |",
    ]


def test_only_common_seeds_are_paired():
    stored = [result(PLAIN, 0, 87.0), result(PLAIN, 1, 80.0)]
    stored += [result(SURGE, 1, 81.0), result(SURGE, 2, 99.0)]
    (row,) = rows_of(SURGE, results=stored)
    assert row.difference.n == 1
    assert row.difference.mean == pytest.approx(1.0)
    (line,) = markdown([row]).splitlines()[2:]
    assert "| 90.00 +- 12.73 |" in line and line.endswith("| 2 | +1.00 (1 pair) |")


def test_pairs_have_the_same_arithmetic():
    stored = [result(PLAIN, 0, 87.0, precision="fp32"), result(SURGE, 0, 88.0)]
    assert rows_of(SURGE, results=stored)[0].difference is None


def test_rows_without_results_are_open():
    text = markdown(rows_of(PLAIN, SURGE, results=[])).splitlines()
    assert text[2] == "| resnet20-recu | 600 | 87.4 | open | open | 0 | - |"
    assert text[3] == "| resnet20-recu-surge | 600 | 88.0 | open | open | 0 | open |"


@pytest.mark.parametrize(
    "fields",
    [
        {"epochs": 10},
        {"data": "cifar10, held out"},
        {"metric": "top5"},
        {"overrides": {"eta": 0.5}},
        {"overrides": {"accumulate": 4}},
    ],
)
def test_other_runs_do_not_count_for_a_row(fields):
    (row,) = rows_of(SURGE, results=[result(SURGE, 0, 90.0, **fields)])
    assert row.last is None


@pytest.mark.parametrize("overrides", [{"epochs": 600}, {"precision": "fp32"}])
def test_neutral_overrides_count_for_a_row(overrides):
    (row,) = rows_of(SURGE, results=[result(SURGE, 0, 90.0, overrides=overrides)])
    assert row.last.mean == 90.0


def test_newest_run_of_a_seed_counts():
    (row,) = rows_of(PLAIN, results=[result(PLAIN, 0, 80.0), result(PLAIN, 0, 87.0)])
    assert (row.last.n, row.last.mean) == (1, 87.0)


def test_changed_epochs_are_rows_of_their_own():
    stored = [result(PLAIN, 0, 87.0), result(PLAIN, 0, 75.0, epochs=10, overrides={"epochs": 10})]
    (short,) = rows_of(PLAIN, results=stored, epochs=10)
    assert (short.epochs, short.last.mean) == (10, 75.0)


def test_stored_rows_are_one_per_row_epochs_and_data():
    stored = [
        *paired([87.0, 87.4], [87.5, 87.5]),
        result(PLAIN, 0, 75.0, epochs=10, overrides={"epochs": 10}),
        result(SURGE, 0, 76.0, epochs=10, overrides={"epochs": 10}),
        result(PLAIN, 0, 74.0, epochs=10, data="cifar10, held out"),
        result(SURGE, 0, 76.5, epochs=10, overrides={"epochs": 10, "eta": 0.1}),
    ]
    rows = stored_rows(stored)
    assert [(row.row, row.epochs, row.data[9:], row.setting) for row in rows] == [
        (PLAIN, 600, "test set", ""),
        (SURGE, 600, "test set", ""),
        (PLAIN, 10, "test set", ""),
        (SURGE, 10, "test set", ""),
        (PLAIN, 10, "held out", ""),
        (SURGE, 10, "test set", "eta=0.1"),
    ]
    assert [row.paper for row in rows] == [87.4, 88.0, None, None, None, None]
    means = [row.difference.mean if row.difference else math.nan for row in rows]
    assert means == pytest.approx([math.nan, 0.3, math.nan, 1.0, math.nan, 1.5], nan_ok=True)


def test_markdown_shows_the_data_where_rows_differ_in_it():
    stored = [result(PLAIN), result(PLAIN, data="cifar10, held out")]
    lines = markdown(stored_rows(stored)).splitlines()
    assert lines[0].startswith("| row | data | epochs |")
    assert lines[3].startswith("| resnet20-recu | cifar10, held out | 600 |")
    assert {line.count("|") for line in lines} == {9}


def test_markdown_names_a_changed_setting_and_has_no_paper_value_for_it():
    stored = [result(SURGE, overrides={"eta": 0.5})]
    assert "| resnet20-recu-surge (eta=0.5) | 600 | - |" in markdown(stored_rows(stored))


def test_stored_row_of_an_unknown_recipe_has_no_paper_value():
    (row,) = stored_rows([result("resnet20-gone")])
    assert (row.row, row.paper) == ("resnet20-gone", None)


def test_base_row_is_what_stands_before_surge():
    assert base_row("resnet20-recu-surge-tied") == PLAIN
    assert base_row("resnet20-recu") is None
