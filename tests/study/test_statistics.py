"""Student's t and intervals, against printed tables and hand calculation."""

import math

import pytest

from surge.study.statistics import estimate, t_cdf, t_quantile

# Two-sided 95 % and 99 % points of Student's t, as statistical tables print them.
TABLE_975 = {1: 12.706, 2: 4.303, 3: 3.182, 4: 2.776, 5: 2.571, 7: 2.365, 10: 2.228, 30: 2.042}
TABLE_995 = {1: 63.657, 2: 9.925, 5: 4.032, 10: 3.169, 30: 2.750}


@pytest.mark.parametrize("df, value", TABLE_975.items())
def test_quantiles_are_those_of_printed_tables(df, value):
    assert t_quantile(0.975, df) == pytest.approx(value, abs=5e-4)


@pytest.mark.parametrize("df, value", TABLE_995.items())
def test_quantiles_at_99_percent(df, value):
    assert t_quantile(0.995, df) == pytest.approx(value, abs=6e-4)


@pytest.mark.parametrize("df", [1, 2, 3, 8, 41])
def test_quantiles_and_distribution_agree_with_scipy(df):
    stats = pytest.importorskip("scipy.stats")
    for p in (0.5, 0.6, 0.9, 0.975, 0.9999):
        assert t_quantile(p, df) == pytest.approx(stats.t.ppf(p, df), rel=1e-8, abs=1e-12)
    for x in (-3.0, -0.4, 0.0, 1.7, 12.0):
        assert t_cdf(x, df) == pytest.approx(stats.t.cdf(x, df), abs=1e-12)


def test_distribution_is_symmetric_and_cauchy_for_one_degree():
    assert t_cdf(0.0, 1) == 0.5
    assert t_cdf(1.0, 1) == pytest.approx(0.75)
    assert t_cdf(-1.3, 4) == pytest.approx(1 - t_cdf(1.3, 4))


def test_estimate_equals_the_calculation_by_hand():
    """Deviations -0.2, 0.1, -0.3, 0.4 from 87.4; their squares add up to 0.3."""
    found = estimate([87.2, 87.5, 87.1, 87.8])
    assert (found.n, found.mean) == (4, pytest.approx(87.4))
    assert found.std == pytest.approx(math.sqrt(0.3 / 3))
    assert found.half_width == pytest.approx(3.1824 * 0.316228 / 2, rel=1e-4)
    assert found.interval == pytest.approx((86.8968, 87.9032), abs=1e-4)


def test_single_value_has_no_interval():
    found = estimate([5.0])
    assert (found.n, found.mean, found.std, found.half_width) == (1, 5.0, 0.0, math.inf)


def test_two_values_have_a_wide_interval():
    found = estimate([1.0, 3.0])
    assert (found.n, found.std) == (2, pytest.approx(math.sqrt(2)))
    assert found.half_width == pytest.approx(12.706, abs=1e-3)


def test_pairs_resolve_what_the_plan_of_the_study_says():
    """At a standard deviation of 0.25: 5 pairs +-0.31, 8 pairs +-0.21, 12 pairs +-0.16."""
    for n, half in ((5, 0.31), (8, 0.21), (12, 0.16)):
        assert t_quantile(0.975, n - 1) * 0.25 / math.sqrt(n) == pytest.approx(half, abs=0.005)
