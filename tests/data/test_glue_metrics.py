"""GLUE's metrics against scikit-learn and SciPy."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats
from sklearn import metrics

from surge.data.glue import TASKS
from surge.data.glue_metrics import COLUMNS, METRICS, averages, score
from surge.errors import ConfigError

OTHERS = {
    "accuracy": metrics.accuracy_score,
    "f1": lambda y, p: metrics.f1_score(y, p, zero_division=0),
    "matthews": metrics.matthews_corrcoef,
    "pearson": lambda y, p: stats.pearsonr(p, y).statistic,
    "spearman": lambda y, p: stats.spearmanr(p, y).statistic,
}
pairs = st.lists(st.tuples(st.integers(0, 1), st.integers(0, 1)), min_size=1, max_size=40)


@pytest.mark.parametrize("name", ["accuracy", "f1", "matthews"])
@given(pairs)
def test_class_metrics_equal_sklearn(name, rows):
    p, y = np.array(rows, dtype=float).T
    with np.errstate(all="ignore"):
        expected = OTHERS[name](y, p)
    assert METRICS[name](p, y) == pytest.approx(100 * np.nan_to_num(expected), abs=1e-9)


@pytest.mark.parametrize("name", ["pearson", "spearman"])
@pytest.mark.parametrize("ties", [False, True])
def test_correlations_equal_scipy(name, ties):
    generator = np.random.default_rng(0)
    p, y = generator.normal(size=(2, 200))
    p = p + y
    if ties:
        p, y = p.round(), y.round()
    assert METRICS[name](p, y) == pytest.approx(100 * OTHERS[name](y, p))


def test_constant_answers_correlate_with_nothing():
    y = np.array([0.0, 1.0, 2.0])
    for name in ("pearson", "spearman", "matthews", "pearson_spearman"):
        assert METRICS[name](np.ones(3), y) == 0.0
        # The mean of twelve times 0.1 is not 0.1.
        assert METRICS[name](np.full(12, 0.1), np.full(12, 0.3)) == 0.0


def test_score_takes_the_largest_class_or_the_only_output():
    logits = np.array([[0.1, 0.9], [0.8, 0.2], [0.3, 0.7]])
    assert score("accuracy", logits, np.array([1.0, 0.0, 0.0])) == pytest.approx(200 / 3)
    line = np.array([[0.0], [1.0], [2.0]])
    assert score("pearson_spearman", line, np.array([1.0, 3.0, 5.0])) == pytest.approx(100)


@pytest.mark.parametrize(
    "values, nine, eight",
    [
        ((84.9, 85.5, 91.4, 92.1, 93.2, 59.7, 90.1, 86.3, 72.2), 83.93, 83.78),
        ((77.0, 77.5, 85.4, 85.5, 87.8, 23.6, 68.0, 79.4, 58.1), 71.37, 70.63),
        ((35.6, 35.3, 66.2, 51.5, 53.2, 0, 6.1, 68.3, 52.7), 40.99, 41.68),
    ],
)
def test_averages_of_the_papers_rows(values, nine, eight):
    found = averages(dict(zip(COLUMNS, values, strict=True)))
    assert found == pytest.approx((nine, eight), abs=0.006)


def test_average_of_some_columns_is_refused():
    with pytest.raises(ConfigError, match="missing: mnli-mm, qqp"):
        averages({"mnli": 80.0})


def test_metrics_of_all_tasks_exist():
    assert {name for task in TASKS.values() for name in task.metrics} <= set(METRICS)
