"""The study's figures: their rows from made-up records, and the committed ones from stored runs."""

from pathlib import Path

import numpy as np
import pytest

from surge.cli._reporting import _read as read_table
from surge.study import figures, sweeps
from surge.study.probe import probe_figures, probe_rows
from surge.study.stored_runs import StoredRun, open_run
from tests.study.run_folders import write_run

ROOT = Path(__file__).parents[3]
STORED = sorted((ROOT / "results" / "runs").iterdir())
FIGURES = ROOT / "results" / "figures"
COMMITTED = sorted(FIGURES.rglob("*.csv"))
SURGE = "digits-cnn-recu-surge"


@pytest.fixture(scope="module")
def stored():
    return [open_run(path) for path in STORED]


def test_committed_numbers_are_what_stored_runs_give(stored, tmp_path):
    found = {}
    for sheet in probe_figures.sheets(stored):
        path = figures.write_csv(sheet.rows, tmp_path / sheet.network / f"{sheet.name}.csv")
        found[str(path.relative_to(tmp_path))] = path.read_text()
    results = ROOT / "results"
    every = [r for path in sorted(results.glob("*.jsonl")) for r in read_table(path)]
    for key in sweeps.KEYS:
        if made := sweeps.rows(every, key):
            path = figures.write_csv(made, tmp_path / f"sweep-{key.replace('_', '-')}.csv")
            found[path.name] = path.read_text()
    committed = {str(path.relative_to(FIGURES)): path.read_text() for path in COMMITTED}
    assert sorted(found) == sorted(committed), "run: make figures"
    assert [name for name in found if found[name] != committed[name]] == [], "run: make figures"
    assert all(path.with_suffix(".png").exists() for path in COMMITTED)


def test_every_figure_is_committed():
    names = {f"sweep-{key.replace('_', '-')}" for key in sweeps.KEYS}
    assert {path.stem for path in COMMITTED} == {*probe_figures.FIGURES, *names}


@pytest.mark.parametrize("name", ["gradient-map", "optimal-scale", "weight-distribution", "norms"])
def test_figures_have_a_panel_per_group(name, stored):
    rows = probe_figures.FIGURES[name].rows([run for run in stored if run.arm.startswith("digits")])
    drawn = probe_figures.panels(name, rows)
    sheet = probe_figures.draw(name, rows)
    shown = [axes for axes in sheet.axes if axes.axison and axes.get_label() != "<colorbar>"]
    assert len(shown) == len(drawn) > 0
    for figure in drawn.values():
        assert figure.axes[0].has_data()


def test_panels_with_the_same_legend_share_one_below(stored):
    digits = [run for run in stored if run.arm.startswith("digits")]
    shared = probe_figures.draw(
        "optimal-scale", probe_figures.FIGURES["optimal-scale"].rows(digits)
    )
    assert len(shared.legends) == 1 and not any(axes.get_legend() for axes in shared.axes)
    rows = probe_figures.FIGURES["gradient-distribution"].rows(digits)
    own = probe_figures.draw("gradient-distribution", rows)  # shares of zeros differ by panel
    assert not own.legends and all(axes.get_legend() for axes in own.axes if axes.has_data())


def record(epoch, **fields):
    layer = {
        "near_zero": 0.1,
        "weights": [0] * 31 + [3, 1] + [0] * 31,
        "gradient_main": {"zeros": 6, "counts": [0] * 40 + [2, 2] + [0] * 14},
        "gradient_total": {"zeros": 0, "counts": [0] * 40 + [8, 2] + [0] * 14},
        **fields,
    }
    return {"epoch": epoch, "layers": {"a": layer, "b": {**layer, "near_zero": 0.3}}}


def made_up(tmp_path, *, seed=0, row=SURGE, **fields):
    run = open_run(write_run(tmp_path, row, seed=seed))
    records = [record(epoch, **fields) for epoch in (0, 19)]
    return StoredRun(run.path, run.recipe, run.environment, run.epochs, records, {})


def test_curves_are_mean_and_range_over_the_seeds(tmp_path):
    runs = [made_up(tmp_path, seed=seed, scale=0.1 + 0.2 * seed) for seed in (0, 1)]
    rows = probe_rows.scale(runs)
    assert len(rows) == 4
    assert [(row["layer"], row["epoch"]) for row in rows] == [
        ("a", 1), ("a", 20), ("b", 1), ("b", 20),
    ]  # fmt: skip
    assert rows[0]["n"] == 2
    assert (rows[0]["low"], rows[0]["mean"], rows[0]["high"]) == pytest.approx((0.1, 0.2, 0.3))


def test_injected_norm_is_scale_times_norm(tmp_path):
    rows = probe_rows.norms([made_up(tmp_path, auxiliary_norm=4.0, main_norm=1.0, scale=0.5)])
    values = {row["series"]: row["mean"] for row in rows}
    assert values == {"|g_b|": 1.0, "|g_a|": 4.0, "|scale g_a|": 2.0}


def test_missing_values_leave_gaps(tmp_path):
    assert probe_rows.input_cosine([made_up(tmp_path, input_cosine=None)]) == []
    run = made_up(tmp_path, row="digits-cnn-recu")
    assert probe_rows.dose([run]) == []


def test_cumulative_share_begins_at_the_zeros(tmp_path):
    rows = probe_rows.gradient_histogram([made_up(tmp_path)])
    without = [row for row in rows if row["series"] == "without" and row["layer"] == "a"]
    assert [row["cumulative"] for row in without] == [0.8, 1.0]
    assert [row["share"] for row in without] == [0.2, 0.2]
    assert {row["zero"] for row in without} == {0.6}
    with_surge = [row for row in rows if row["series"] == "with" and row["layer"] == "a"]
    assert [row["cumulative"] for row in with_surge] == [0.8, 1.0]
    assert with_surge[0]["zero"] == 0.0


def test_weight_density_has_area_one(tmp_path):
    rows = probe_rows.weight_histogram([made_up(tmp_path)])
    width = rows[1]["weight"] - rows[0]["weight"]
    assert sum(row["density"] for row in rows) * width == pytest.approx(1.0)
    assert {row["layer"] for row in rows} == {"b"}


def test_near_zero_is_the_mean_over_layers_in_percent(tmp_path):
    rows = probe_rows.near_zero([made_up(tmp_path)])
    assert [row["mean"] for row in rows] == pytest.approx([20.0, 20.0])


def test_accuracy_is_shown_at_epochs_that_all_who_came_so_far_tested(tmp_path):
    tested = {0: (1, 2, 3, 4, 6), 1: (2, 4, 6), 2: (2,)}  # the last one was stopped
    runs = []
    for seed, epochs in tested.items():
        run = made_up(tmp_path, seed=seed)
        lines = [{"epoch": epoch - 1, run.metric: 50.0 + 10 * seed} for epoch in epochs]
        runs.append(StoredRun(run.path, run.recipe, run.environment, lines, [], {}))
    rows = probe_rows.accuracy(runs)
    assert [(row["epoch"], row["n"], row["mean"]) for row in rows] == [
        (2, 3, 60.0), (4, 2, 55.0), (6, 2, 55.0),
    ]  # fmt: skip


def test_small_differences_at_the_end_do_not_fill_a_panel():
    rows = [{"network": "n", "arm": f"a-b-{k}", "seed": 0, "value": 90 + k / 5} for k in (0, 1)]
    (drawn,) = probe_figures.panels("final-metric", rows).values()
    low, high = drawn.axes[0].get_xlim()
    assert (high - low, (high + low) / 2) == pytest.approx((2.0, 90.1))


def test_a_long_curve_is_drawn_through_some_epochs_and_its_last():
    place = {"network": "n", "arm": "a-b-c", "n": 1}
    rows = [
        {**place, "epoch": epoch, "low": 50.0, "mean": 50.0, "high": 50.0}
        for epoch in range(1, 601)
    ]
    (drawn,) = probe_figures.panels("accuracy", rows).values()
    (line,) = drawn.axes[0].lines
    assert len(line.get_xdata()) == 60 and line.get_xdata()[-1] == 600


def test_map_shows_the_first_run_with_surge(tmp_path):
    run = made_up(tmp_path)
    arrays = {
        "clipped": np.array([[True, False]]),
        "without": np.array([[0.0, 2.0]]),
        "with": np.array([[0.5, 2.5]]),
    }
    run = StoredRun(run.path, run.recipe, run.environment, run.epochs, run.records, {19: arrays})
    rows = probe_rows.gradient_map([run])
    assert [(row["clipped"], row["without"], row["with"]) for row in rows] == [
        (1, 0.0, 0.5),
        (0, 2.0, 2.5),
    ]
    drawn = probe_figures.panels("gradient-map", rows)
    assert list(drawn) == ["without SURGE", "with SURGE"]
    axes = drawn["without SURGE"].axes[0]
    assert axes.get_title(loc="right") == "50% exactly zero"
    assert "50% of the inputs clipped" in axes.get_xlabel()


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ([0.783, 0.478], ["0.5", "0.6", "0.7", "0.8"]),
        ([0.004, 0.04], ["0.005", "0.01", "0.02"]),
        ([1e-5, 1.0], ["1e-05", "0.0001", "0.001", "0.01", "0.1", "1"]),
    ],
)
def test_axes_have_plain_numbers_and_whole_epochs(values, expected):
    rows = [
        {"arm": "a", "epoch": epoch, "low": value, "mean": value, "high": value}
        for epoch, value in enumerate(values, 1)
    ]
    panels = probe_figures.panels("flip-rate", [{**r, "network": "digits-cnn-9ep"} for r in rows])
    figure = panels["digits cnn, 9 epochs"]
    figure.canvas.draw()
    axes = figure.axes[0]

    def shown(axis):
        low, high = sorted(axis.get_view_interval())
        ticks = zip(axis.get_majorticklocs(), axis.get_majorticklabels(), strict=True)
        return [label.get_text() for place, label in ticks if low <= place <= high]

    assert shown(axes.yaxis) == expected
    assert shown(axes.xaxis) == ["1", "2"]
    assert not axes.yaxis.get_minorticklocs().size


def test_a_sheet_of_one_network_names_it_and_its_epochs(tmp_path):
    rows = probe_rows.final_metric([open_run(write_run(tmp_path, epochs=2))])
    (axes,) = probe_figures.draw("final-metric", rows).axes
    assert axes.get_title(loc="left") == "After the last epoch: digits cnn, 2 epochs"


def test_an_only_epoch_has_no_fractions_beside_it(tmp_path):
    rows = probe_rows.accuracy([open_run(write_run(tmp_path, epochs=1))])
    axes = probe_figures.draw("accuracy", rows).axes[0]
    low, high = axes.get_xlim()
    assert [tick for tick in axes.get_xticks() if low <= tick <= high] == [1]
