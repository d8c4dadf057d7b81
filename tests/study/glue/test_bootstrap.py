"""Intervals by bootstrap: against a slow loop, against exact odds, and on data with known truth."""

import numpy as np
import pytest

from surge.data.glue_metrics import METRICS, score
from surge.errors import ConfigError
from surge.study.glue.bootstrap import Compared, draw, pooled, resamples
from surge.study.statistics import estimate
from tests.study.glue.test_resampled import CLASSES, classes, numbers

SETS = 600
"""Simulated dev sets: shares of them have a standard error of one percent."""


def example(metric, task="mrpc", seeds=3):
    """Two arms, three seeds each, on few examples."""
    generator = np.random.default_rng(5)
    rows, labels = (classes if metric in CLASSES else numbers)(generator, 23)
    ours, theirs = rows[:seeds], rows[[1, 0, 3][:seeds]]
    return Compared(task, metric, labels, ours, theirs)


@pytest.mark.parametrize("metric", METRICS)
def test_interval_is_that_of_a_loop_over_resampled_arrays(metric):
    c, draws = example(metric), 50

    def one(answers, chosen):
        logits = np.eye(2)[answers.astype(int)] if metric in CLASSES else answers[:, None]
        return score(metric, logits[chosen], c.labels[chosen])

    values = []
    for seeds, examples in resamples("mrpc", c.ours.shape, draws, 0):
        for number in range(seeds.shape[1]):
            chosen = np.repeat(np.arange(len(c.labels)), examples[:, number].astype(int))
            again = np.repeat(np.arange(len(c.ours)), seeds[:, number].astype(int))
            gains = [one(c.ours[k], chosen) - one(c.theirs[k], chosen) for k in again]
            values.append(np.mean(gains))
    assert len(values) == draws and np.ptp(values) > 1
    found = draw(c, draws=draws)
    np.testing.assert_allclose(found.draws, values, rtol=1e-9, atol=1e-9)
    everything = np.arange(len(c.labels))
    own = [one(a, everything) - one(b, everything) for a, b in zip(c.ours, c.theirs, strict=True)]
    assert found.difference == pytest.approx(np.mean(own))
    low, high = pooled([found]).interval
    assert (low, high) == pytest.approx(tuple(np.quantile(values, [0.025, 0.975])))


def test_draws_are_with_replacement_and_of_the_right_size():
    (seeds, examples), *rest = resamples("rte", (4, 30), 512, 0)
    assert not rest and seeds.shape == (4, 512) and examples.shape == (30, 512)
    assert set(seeds.sum(axis=0)) == {4.0} and set(examples.sum(axis=0)) == {30.0}
    for counts in (seeds, examples):  # binomial: mean 1, variance 1 - 1 / size
        assert counts.mean(axis=1) == pytest.approx(np.ones(len(counts)), abs=0.2)
        assert counts.var() == pytest.approx(1 - 1 / len(counts), rel=0.1)
    assert abs(np.corrcoef(seeds[0], examples[0])[0, 1]) < 0.15


def test_large_sets_are_drawn_in_parts():
    parts = list(resamples("qqp", (1, 40_000), 60, 0))
    assert len(parts) > 1 and sum(examples.shape[1] for _, examples in parts) == 60
    assert {len(examples) for _, examples in parts} == {40_000}


def test_seeds_are_drawn_in_pairs():
    """One pair differs by 100 points on any examples, the other by none: 0, 50, 100 in 1:2:1."""
    right, wrong = np.ones(9), np.zeros(9)
    found = draw(Compared("rte", "accuracy", right, np.stack([right, wrong]), np.zeros((2, 9))))
    values, counts = np.unique(found.draws, return_counts=True)
    assert values.tolist() == [0.0, 50.0, 100.0]
    assert counts / counts.sum() == pytest.approx([0.25, 0.5, 0.25], abs=0.02)


@pytest.mark.parametrize("metric", METRICS)
def test_arms_with_the_same_answers_differ_by_exactly_nothing(metric):
    c = example(metric)
    same = draw(Compared(c.task, metric, c.labels, c.ours, c.ours.copy()), draws=300)
    found = pooled([same])
    assert (found.mean, found.interval) == (0.0, (0.0, 0.0))


def test_single_seed_is_drawn_over_examples_only():
    c = example("accuracy", seeds=1)
    found = pooled([draw(c, draws=300)])
    assert found.seeds == (1,) and found.n == 1
    assert found.interval[0] < found.mean < found.interval[1]
    longer = Compared(c.task, c.metric, c.labels, *(np.repeat(a, 4, 0) for a in (c.ours, c.theirs)))
    assert pooled([draw(longer, draws=300)]).interval == pytest.approx(found.interval)


def test_draws_depend_on_the_task_and_on_nothing_else():
    c = example("accuracy")
    assert np.array_equal(draw(c, draws=99).draws, draw(c, draws=99).draws)
    other = example("accuracy", task="rte")
    assert not np.array_equal(draw(c, draws=99).draws, draw(other, draws=99).draws)
    for shape in ((3, 23), (5, 23)):  # with other seeds, too, the examples are the same
        (_, examples), *_ = resamples("mrpc", shape, 40, 0)
        (_, again), *_ = resamples("mrpc", (3, 23), 40, 0)
        assert np.array_equal(examples, again)


def test_tasks_count_alike_and_in_any_order():
    parts = [
        draw(example("accuracy", task, seeds), draws=200) for task, seeds in (("a", 3), ("b", 1))
    ]
    found, turned = pooled(parts), pooled(parts[::-1])
    assert found.mean == pytest.approx((parts[0].difference + parts[1].difference) / 2)
    assert found.interval == pytest.approx(turned.interval) and found.mean == turned.mean
    assert (found.seeds, found.n, found.examples) == ((3, 1), 4, 46)
    values = (parts[0].draws + parts[1].draws) / 2
    assert found.interval == pytest.approx(tuple(np.quantile(values, [0.025, 0.975])))


@pytest.mark.parametrize("ours, theirs", [((2, 4), (2, 4)), ((2, 5), (3, 5)), ((0, 5), (0, 5))])
def test_answers_that_do_not_fit_are_refused(ours, theirs):
    with pytest.raises(ConfigError, match=r"rte: answers of two arms must be .* for 5 labels"):
        Compared("rte", "accuracy", np.ones(5), np.ones(ours), np.ones(theirs))


def truth(generator, metric):
    """Two arms of 10 seeds whose examples and seeds both vary; and their difference in general."""
    seeds, size = 10, 250
    first, second = generator.normal(size=(2, seeds, 1))
    if metric == "accuracy":  # an example is hard, whatever the seed; a seed is good on all
        hard = generator.random((2, size))
        ours, theirs = hard[0] < 0.7 + 0.04 * first, hard[1] < 0.65 + 0.04 * second
        return Compared("rte", metric, np.ones(size), ours * 1.0, theirs * 1.0), 5.0
    labels, noise, other = generator.normal(size=(3, size))
    ours, theirs = labels + np.exp(0.2 * first) * noise, labels + 1.2 * np.exp(0.2 * second) * other
    drawn = np.random.default_rng(0).normal(size=200_000)
    own, others = (
        np.mean(100 / np.sqrt(1 + (scale * np.exp(0.2 * drawn)) ** 2)) for scale in (1.0, 1.2)
    )
    return Compared("stsb", metric, labels, ours, theirs), own - others


@pytest.mark.parametrize("metric", ["accuracy", "pearson"])
def test_intervals_hold_the_true_difference_as_often_as_they_say(metric):
    """Intervals over seeds alone, which take the dev set for the world, do much worse."""
    generator = np.random.default_rng(3)
    held = over_seeds = 0
    for number in range(SETS):
        compared, true = truth(generator, metric)
        low, high = pooled([draw(compared, draws=300, seed=number)]).interval
        held += low <= true <= high
        gains = [
            METRICS[metric](a, compared.labels) - METRICS[metric](b, compared.labels)
            for a, b in zip(compared.ours, compared.theirs, strict=True)
        ]
        low, high = estimate(gains).interval
        over_seeds += low <= true <= high
    assert 0.92 <= held / SETS <= 0.98
    assert over_seeds / SETS < 0.88
