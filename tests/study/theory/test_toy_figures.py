"""The toy figures: what they are drawn from and what is written."""

import csv
import json
from functools import cache

import numpy as np
import pytest

from surge.study.arms import draw_panel_alone
from surge.study.theory import toy, toy_figures
from surge.study.theory.toy_claims import judge, representative

ALL = (*toy_figures.CONVERGENCE, *toy_figures.PARAMETERS)


@cache
def logs():
    return toy.run_study(toy.ToyOptions(seeds=3, steps=40, inputs=4, hidden=17))


@cache
def rows():
    return toy_figures.make_rows(logs(), toy_figures.FIVE, ALL)


def arms_of(panel):
    return {row["arm"] for row in rows() if row["panel"] == panel}


def test_rows_leave_out_what_an_arm_does_not_have():
    compensated = {"STE+SURGE", "Bi-Real+SURGE"}
    assert arms_of("scale") == arms_of("norm_auxiliary") == compensated
    assert arms_of("alpha_w") == arms_of("alpha_a") == set(toy_figures.FIVE) - {"FP"}
    assert arms_of("loss") == arms_of("norm_main") == set(toy_figures.FIVE)


def test_trajectory_is_every_step_of_the_representative_seed():
    seed = representative(logs())
    mine = [r for r in rows() if (r["panel"], r["arm"]) == ("trajectory", "STE")]
    assert [row["step"] for row in mine] == list(range(1, 41))
    np.testing.assert_array_equal([row["x"] for row in mine], logs()["STE"].x[:, seed])


def test_curve_is_the_median_over_seeds_of_the_mean_since_the_last_point():
    mine = [r for r in rows() if (r["panel"], r["arm"]) == ("norm_main", "STE")]
    series = logs()["STE"].norm_main[:, :, 0]
    before, last = mine[-2]["step"], mine[-1]["step"]
    assert last == 40
    means = series[before:last].mean(axis=0)
    assert mine[-1]["median"] == pytest.approx(np.median(means))
    assert mine[-1]["low"] == pytest.approx(np.quantile(means, 0.25))
    assert mine[0]["median"] == pytest.approx(np.median(series[0]))


def test_logarithmic_panels_average_logarithms():
    mine = [r for r in rows() if (r["panel"], r["arm"]) == ("loss", "STE")]
    series = np.log10(logs()["STE"].loss[mine[-2]["step"] :]).mean(axis=0)
    assert mine[-1]["median"] == pytest.approx(10 ** np.median(series))


@pytest.mark.parametrize("name", ALL)
def test_each_panel_stands_alone(name):
    figure = draw_panel_alone(rows(), name, toy_figures.draw_panel)
    (axes,) = figure.axes
    assert axes.get_xlabel() in ("step", "x") and axes.get_ylabel()
    assert len(axes.lines) >= 2


def test_figure_has_a_title_per_panel_and_one_legend():
    figure = toy_figures.draw(rows(), toy_figures.CONVERGENCE)
    titles = [axes.get_title(loc="left") for axes in figure.axes]
    assert [title[0] for title in titles] == list("abcd")
    (legend,) = figure.legends
    assert [text.get_text() for text in legend.get_texts()] == list(toy_figures.FIVE)


def test_study_is_written_as_pictures_tables_and_arrays(tmp_path):
    claims = judge(logs())
    written = toy_figures.write_study(logs(), claims, tmp_path / "deep" / "out")
    names = {path.name for path in written}
    pictures = {f"{name}.{end}" for name in toy_figures.PICTURES for end in ("png", "csv")}
    assert names == pictures | {"claims.csv", "claims.json", "log.npz"}
    assert all(path.stat().st_size for path in written)
    with (tmp_path / "deep" / "out" / "toy-noise-convergence.csv").open() as file:
        assert {row["arm"] for row in csv.DictReader(file)} == set(toy_figures.NOISE)
    stored = json.loads((tmp_path / "deep" / "out" / "claims.json").read_text())
    assert [line["difference"] for line in stored] == [claim.difference for claim in claims]
    arrays = np.load(tmp_path / "deep" / "out" / "log.npz")
    assert arrays["STE+SURGE/scale"].shape == (40, 3, 2)
    assert "FP/alpha_w" not in arrays
