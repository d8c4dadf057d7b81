"""Learning curves over seeds."""

import pytest

from surge.study import learning
from surge.study.arms import draw_panel_alone
from surge.study.learning import PANELS, Run, draw, draw_panel, make_rows


def run(arm, seed, accuracies, flips=1.0):
    return Run(
        arm,
        seed,
        [
            {"test_top1": a, "train_loss": 2.0 / (n + 1), "flips": flips}
            for n, a in enumerate(accuracies)
        ],
    )


RUNS = [
    run("Float", 0, [80.0, 98.0], flips=0.0),
    run("STE", 0, [50.0, 90.0]),
    run("STE", 1, [60.0, 92.0]),
    run("STE+SURGE", 0, [55.0, 91.0]),
]


def rows(panel, arm):
    return [row for row in make_rows(RUNS) if (row["panel"], row["arm"]) == (panel, arm)]


def test_curve_is_the_mean_with_the_range_over_seeds():
    assert rows("accuracy", "STE")[1] == {
        "panel": "accuracy", "arm": "STE", "epoch": 2, "low": 90.0, "mean": 91.0, "high": 92.0,
    }  # fmt: skip


def test_curve_ends_where_a_seed_does():
    short = [*RUNS, run("STE", 2, [70.0])]
    found = [r for r in make_rows(short, ["accuracy"]) if r["arm"] == "STE"]
    assert [(row["epoch"], row["high"]) for row in found] == [(1, 70.0)]


def test_final_has_every_seed():
    assert [(row["seed"], row["mean"]) for row in rows("final", "STE")] == [(0, 90.0), (1, 92.0)]


def test_network_without_bits_has_no_flips():
    assert rows("flips", "Float") == [] and rows("flips", "STE")


@pytest.mark.parametrize("name", PANELS)
def test_each_panel_stands_alone(name):
    (axes,) = draw_panel_alone(make_rows(RUNS), name, draw_panel).axes
    assert axes.lines and axes.get_ylabel() == PANELS[name].axis


def test_figure_has_all_panels_and_one_legend():
    figure = draw(make_rows(RUNS))
    assert len(figure.axes) == len(PANELS)
    (legend,) = figure.legends
    assert [text.get_text() for text in legend.get_texts()] == ["Float", "STE", "STE+SURGE"]


def test_accuracy_axis_leaves_the_first_epochs_out():
    values = [float(v) for v in range(0, 100)]
    assert learning._floor(values) == 21.0
