"""The curves over eta and over fixed scales, from stored results."""

import csv
import io

import pytest

from surge.study import sweeps
from tests.study.stored import result

ROW = "resnet20-recu-surge"


def stored(**fields):
    """Two seeds of three etas, two fixed scales, the adaptive one and the row without SURGE."""
    last = {
        "resnet20-recu": 80.0,
        ROW: 81.0,
        f"{ROW}-eta0.001": 80.5,
        f"{ROW}-eta0.1": 79.0,
        f"{ROW}-fixed0.1": 75.0,
        f"{ROW}-fixed1": 65.0,
    }
    return [
        result(row, seed, value + seed, **fields) for row, value in last.items() for seed in (0, 1)
    ]


def test_names_carry_the_numbers_and_the_plain_row_its_own_eta():
    (curve,) = sweeps.curves(stored(), "eta").values()
    assert curve.points == {
        0.01: {0: 81.0, 1: 82.0},
        0.001: {0: 80.5, 1: 81.5},
        0.1: {0: 79.0, 1: 80.0},
    }
    assert curve.references == {sweeps.WITHOUT: {0: 80.0, 1: 81.0}}


def test_fixed_scales_are_held_against_the_adaptive_one():
    (curve,) = sweeps.curves(stored(), "fixed_scale").values()
    assert set(curve.points) == {0.1, 1.0}
    assert curve.references[sweeps.AGS] == {0: 81.0, 1: 82.0}


def test_options_of_a_command_count_like_names():
    held = [
        result(ROW, last=81.0),
        result(ROW, last=70.0, overrides={"fixed_scale": 0.5}),
        result(ROW, last=79.0, overrides={"eta": 0.1}),
    ]
    (eta,) = sweeps.curves(held, "eta").values()
    assert {value: seeds[0] for value, seeds in eta.points.items()} == {0.01: 81.0, 0.1: 79.0}
    (fixed,) = sweeps.curves(held, "fixed_scale").values()
    assert fixed.points == {0.5: {0: 70.0}}
    assert fixed.references == {sweeps.AGS: {0: 81.0}}


def test_a_curve_with_another_setting_is_held_against_plain_runs_with_it():
    changed = {"overrides": {"lr": 1.6}}
    held = [
        *(result("resnet20-recu", last=80.0), result("resnet20-recu", last=90.0, **changed)),
        *(result(ROW, last=91.0, **changed), result(f"{ROW}-eta0.1", last=92.0, **changed)),
    ]
    (curve,) = sweeps.curves(held, "eta").values()
    assert curve.references == {sweeps.WITHOUT: {0: 90.0}}


@pytest.mark.parametrize(
    "other", [{"epochs": 20}, {"data": "cifar10, held out"}, {"precision": "fp32"}]
)
def test_runs_of_other_length_data_or_arithmetic_make_a_curve_of_their_own(other):
    held = [*stored(), *stored(**other)]
    both = sweeps.curves(held, "eta")
    assert len(both) == 2
    assert all(len(curve.points) == 3 for curve in both.values())
    assert len(sweeps.draw(sweeps.rows(held, "eta"), "eta").axes) == 2


def test_other_variants_and_settings_are_kept_apart():
    held = [
        result(f"{ROW}-tied"),
        result(f"{ROW}-tied-eta0.05"),
        result(f"{ROW}-eta0.05"),
        result(ROW),
        result(ROW, overrides={"eta": 0.1, "batch": 128}),
    ]
    found = {where[0]: set(curve.points) for where, curve in sweeps.curves(held, "eta").items()}
    assert found == {f"cifar10-{ROW}-tied": {0.2, 0.05}, f"cifar10-{ROW}": {0.01, 0.05}}


def test_further_metrics_and_forgotten_rows_are_left_out():
    held = [*stored(), *stored(metric="f1"), result(f"{ROW}-eta0.5", recipe="cifar10-gone-surge")]
    assert sweeps.curves(held, "eta") == sweeps.curves(stored(), "eta")


def test_nothing_is_drawn_of_one_eta(tmp_path):
    assert sweeps.curves([result(ROW), result("resnet20-recu")], "eta") == {}
    assert sweeps.write([result(ROW)], tmp_path) == []


def test_both_curves_are_written_with_their_numbers(tmp_path):
    written = sweeps.write(stored(), tmp_path)
    assert [path.name for path in written] == [
        "sweep-eta.png", "sweep-eta.csv", "sweep-fixed-scale.png", "sweep-fixed-scale.csv",
    ]  # fmt: skip
    lines = list(csv.DictReader(io.StringIO((tmp_path / "sweep-eta.csv").read_text())))
    assert [line["eta"] for line in lines] == ["0.001"] * 2 + ["0.01"] * 2 + ["0.1"] * 2 + [""] * 2
    assert {line["series"] for line in lines} == {"eta", sweeps.WITHOUT}


def test_picture_has_a_panel_per_row_on_a_logarithmic_axis():
    made = sweeps.rows([*stored(), *stored(epochs=20)], "fixed_scale")
    first, second = sweeps.draw(made, "fixed_scale").axes
    assert first.get_xscale() == second.get_xscale() == "log"
    means = first.lines[0].get_xydata().tolist()
    assert means == [[0.1, 75.5], [1.0, 65.5]]
    assert first.get_legend_handles_labels()[1] == ["fixed scale", sweeps.AGS, sweeps.WITHOUT]


def test_runs_that_broke_down_are_named_and_leave_the_scale_to_the_others():
    (axes,) = sweeps.draw(sweeps.rows(stored(), "fixed_scale"), "fixed_scale").axes
    assert "↓ 65.0, 66.0" in [text.get_text() for text in axes.texts]
    low, high = axes.get_ylim()
    assert 66.0 < low < 75.0 and high > 82.0
    (axes,) = sweeps.draw(sweeps.rows(stored(), "eta"), "eta").axes
    assert not any("↓" in text.get_text() for text in axes.texts)


def test_values_are_compared_over_the_seeds_that_all_have():
    more = [result(ROW, 7, 50.0)]
    for key in ("eta", "fixed_scale"):
        for curve in sweeps.curves([*stored(), *more], key).values():
            lines = [*curve.points.values(), *curve.references.values()]
            assert {tuple(sorted(line)) for line in lines} == {(0, 1)}
