"""The optimal scale by Monte Carlo, and the figures it is shown with."""

import csv
import sys
from dataclasses import asdict
from functools import cache

import numpy as np
import pytest

from surge.errors import ConfigError, MissingDependencyError
from surge.study import figures
from surge.study.arms import arm_style
from surge.study.theory import moments, theorem
from surge.study.theory.moments import MomentModel, independent_model, sample, shared_model


@cache
def study():
    return theorem.run_study(samples=8000, seed=3)


def verdicts():
    return {result.verdict.scenario: result.verdict for result in study()}


def small_model():
    return independent_model(
        np.array([1.0, 0.0, 0.0]),
        np.array([0.0, 2.0, 0.0]),
        np.array([0.5, 1.0, 0.0]),
        variance_b=np.array([0.1, 0.2, 0.3]),
        variance_a=np.array([1.0, 2.0, 3.0]),
    )


def layer_model(*, scope="all"):
    rng = np.random.default_rng(1)
    latent = rng.standard_normal((12, 20))
    mask = (np.arange(20) % 2).astype(float)
    weight_a = latent * (1 - mask) if scope == "clipped" else latent
    weight_b = np.sign(latent)
    return shared_model(
        weight_b, weight_a, mask, mean=rng.standard_normal(12), variance=np.ones(12)
    )


def test_closed_form_equals_hand_computation():
    # <delta_b, mu_a> = 2; |mu_a|^2 = 4; tr Var(g_a) = 6
    assert small_model().closed_form == pytest.approx(0.2)
    assert small_model().corrected == pytest.approx(0.2)


def test_ratios_and_eta_equal_hand_computation():
    model = small_model()
    cosine, bias_ratio, noise_ratio = model.ratios
    assert cosine == pytest.approx(2 / (2 * 1.25**0.5))
    assert bias_ratio == pytest.approx(1.25**0.5)
    assert noise_ratio == pytest.approx(1.5)
    # The corollary is an identity when eta is set for the very same moments.
    assert model.eta * 1.0 / 2.0 == pytest.approx(model.closed_form)


def test_covariance_equals_explicit_matrices():
    model = layer_model()
    rng = np.random.default_rng(1)
    latent = rng.standard_normal((12, 20))
    mask = np.diag((np.arange(20) % 2).astype(float))
    expected = np.trace(mask @ np.sign(latent).T @ latent)
    assert model.terms[1] == pytest.approx(expected)


@pytest.mark.parametrize("model", [small_model(), layer_model()], ids=["independent", "shared"])
@pytest.mark.parametrize("scale", [-0.3, 0.0, 0.4])
def test_expected_error_equals_sampled_error(model, scale):
    mean, error = sample(model, 20_000, np.random.default_rng(5)).mean_error(scale)
    assert abs(mean - model.expected_error(scale)) < 4 * error


def test_minimiser_has_the_smallest_sampled_error():
    draws = sample(layer_model(), 500, np.random.default_rng(2))
    best, _ = draws.minimiser()
    lowest = draws.mean_error(best)[0]
    assert all(draws.mean_error(best + step)[0] > lowest for step in (-1e-3, 1e-3))


@pytest.mark.parametrize("model", [small_model(), layer_model()], ids=["independent", "shared"])
def test_standard_error_is_calibrated(model):
    rng = np.random.default_rng(11)
    scores = []
    for _ in range(400):
        value, error = sample(model, 1000, rng).minimiser()
        scores.append((value - model.corrected) / error)
    # 400 scores: their mean is within 0.2 of 0 and their spread within 0.15 of 1 at 4 sigma.
    assert abs(np.mean(scores)) < 0.2
    assert abs(np.std(scores) - 1.0) < 0.15


def test_sample_does_not_depend_on_chunks(monkeypatch):
    whole = sample(small_model(), 50, np.random.default_rng(0))
    monkeypatch.setattr(moments, "_CHUNK", 7)
    parts = sample(small_model(), 50, np.random.default_rng(0))
    np.testing.assert_allclose(parts.cross, whole.cross)


def test_study_independent_noises_agree_with_the_closed_form():
    found = verdicts()["independent"]
    assert abs(found.z_closed_form) < theorem.Z_LIMIT
    assert found.closed_form == pytest.approx(found.corrected)


@pytest.mark.parametrize("name", ["shared-independent", "shared-aligned"])
def test_study_shared_gradient_needs_the_correction(name):
    found = verdicts()[name]
    assert abs(found.z_corrected) < theorem.Z_LIMIT < abs(found.z_closed_form)
    assert found.formula_verdict == "closed form wrong"


def test_study_clipped_scope_restores_the_closed_form():
    assert layer_model(scope="clipped").terms[1] == 0.0
    found = verdicts()["shared-clipped"]
    assert found.premise == "holds"
    assert abs(found.z_closed_form) < theorem.Z_LIMIT


def test_study_noisy_shared_gradient_turns_the_optimum_negative():
    scenarios = theorem.scenarios(dimension=64, noise=4.0, seed=0)
    models = {scenario.name: scenario.model for scenario in scenarios}
    assert models["shared-aligned"].closed_form > 0 > models["shared-aligned"].corrected
    assert models["shared-clipped"].corrected > 0


def test_corollary_holds_while_its_premises_do():
    found = verdicts()["corollary"]
    assert found.ags_excess < 0.01 < found.no_compensation_excess
    assert found.best_eta == pytest.approx(found.eta, rel=0.05)


def test_corollary_survives_any_change_of_both_norms():
    base = theorem.scenarios(dimension=32, noise=0.5, seed=0)[4]
    stretch = {"mean_b": 50.0, "bias": 50.0, "noise_b": 50.0, "mean_a": 0.01, "noise_a": 0.01}
    model = MomentModel(**{key: getattr(base.model, key) * by for key, by in stretch.items()})
    other = theorem.Scenario("other", "", "holds", model, base.eta)
    found = theorem.judge(other, sample(model, 4000, np.random.default_rng(0))).verdict
    assert found.ags_excess < 0.01
    assert found.corrected == pytest.approx(base.model.corrected * 5000)


@pytest.mark.parametrize(
    "name", ["no-alignment", "negative-alignment", "large-bias", "large-noise"]
)
def test_corollary_fails_with_each_premise(name):
    found = verdicts()[name]
    assert found.premise.startswith("fails")
    assert found.ags_excess > 0.05
    assert abs(found.z_closed_form) < theorem.Z_LIMIT  # the theorem itself still holds


def test_negative_alignment_leaves_ags_nothing_but_zero():
    found = verdicts()["negative-alignment"]
    assert found.closed_form < 0 <= found.ags_scale
    assert found.best_eta == 0.0
    assert found.ags_verdict == "harms"


def test_study_is_seeded():
    again = theorem.run_study(samples=8000, seed=3)
    assert [r.verdict for r in again] == [r.verdict for r in study()]
    other = theorem.run_study(samples=8000, seed=4)
    assert other[0].verdict.estimate != again[0].verdict.estimate


@pytest.mark.parametrize(
    "wrong",
    [{"samples": 10}, {"dimension": 2}, {"noise": 0.0}, {"noise": float("nan")}, {"seed": -1}],
)
def test_study_refuses_bad_settings(wrong):
    with pytest.raises(ConfigError, match="--samples"):
        theorem.run_study(**wrong)


def test_verdict_words_cover_every_outcome():
    assert theorem._formula_verdict(0.1, 5.0) == "both wrong"
    assert theorem._ags_verdict(0.001, 0.2) == "near optimal"
    assert theorem._ags_verdict(0.1, 0.2) == "helps"


def test_figures_show_what_the_rows_say(tmp_path):
    rows = [row for result in study() for row in result.points]
    picture, table = figures.save(theorem.draw(study()), rows, tmp_path / "new" / "theorem")
    assert picture.read_bytes().startswith(b"\x89PNG")
    with table.open() as stream:
        stored = list(csv.DictReader(stream))
    assert len(stored) == len(rows)
    assert {row["series"] for row in stored} == set(theorem._MARKS)
    assert sorted(path.name for path in picture.parent.iterdir()) == ["theorem.csv", "theorem.png"]


def test_figures_mark_the_formulas_where_they_are():
    result = study()[2]
    axes = theorem.draw(study()).axes[2]
    lines = {line.get_label(): line for line in axes.lines}
    assert lines["closed form (paper)"].get_xdata()[0] == result.verdict.closed_form
    assert lines["corrected optimum"].get_xdata()[0] == result.verdict.corrected
    low = np.argmin(lines["expected error"].get_ydata())
    near = lines["expected error"].get_xdata()[low]
    assert near == pytest.approx(result.verdict.corrected, abs=0.02)


def test_eta_figure_has_a_line_per_corollary_scenario():
    (axes,) = theorem.draw_eta(study()).axes
    labels = axes.get_legend_handles_labels()[1]
    assert labels == [result.title for result in study()[-5:]]


def test_figures_leave_matplotlib_settings_alone():
    import matplotlib

    before = dict(matplotlib.rcParams)
    theorem.draw_eta(study())
    assert dict(matplotlib.rcParams) == before


def test_figures_name_the_install_command(monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(MissingDependencyError, match=r"pip install 'surge-bnn\[demo\]'"):
        theorem.draw(study())


def test_write_csv_keeps_the_old_file_when_it_fails(tmp_path, monkeypatch):
    path = figures.write_csv([{"a": 1}], tmp_path / "table.csv")
    monkeypatch.setattr("os.replace", lambda *_: (_ for _ in ()).throw(OSError(28, "full")))
    with pytest.raises(OSError, match="full"):
        figures.write_csv([{"a": 2}], path)
    assert path.read_text() == "a\n1\n"
    assert list(tmp_path.iterdir()) == [path]


def test_write_json_holds_the_verdicts(tmp_path):
    path = figures.write_json([asdict(result.verdict) for result in study()], tmp_path / "v.json")
    assert '"scenario": "independent"' in path.read_text()


def test_arm_styles_tell_surge_from_its_base():
    for arm in ("STE", "Bi-Real", "ReCU"):
        base, surge = arm_style(arm), arm_style(f"{arm} + SURGE")
        assert base.dashes != surge.dashes and base.colour != surge.colour
    assert arm_style("FP").line()["color"] == figures.COLOURS["grey"]
    assert arm_style("Newcomer+SURGE").dashes == "-"
