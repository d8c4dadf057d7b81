"""Metrics of resampled dev sets, against the metrics of the examples written out."""

import numpy as np
import pytest

from surge.data.glue_metrics import METRICS, score
from surge.errors import ConfigError
from surge.study.glue.resampled import RESAMPLED, scores

CLASSES = ("accuracy", "f1", "matthews")
SIZE, DRAWS = 37, 60


def classes(generator, size=SIZE):
    """Runs of very different quality: good, guessing, nearly always 1, always 1, always 0."""
    labels = (generator.random(size) < 0.6).astype(float)
    good = np.where(generator.random(size) < 0.8, labels, 1 - labels)
    guessed = (generator.random(size) < 0.5).astype(float)
    rare = np.ones(size)
    rare[0] = 0
    return np.stack([good, guessed, rare, np.ones(size), np.zeros(size)]), labels


def numbers(generator, size=SIZE):
    """The same with scores: good, tied, of other size, nearly constant, constant."""
    labels = generator.integers(0, 11, size) / 2
    good = labels + generator.normal(size=size)
    rare = np.full(size, 0.1)
    rare[0] = 3.7
    close = 1e6 + 1e-3 * generator.normal(size=size)
    close[1] = -1e6
    return np.stack([good, good.round(), 1e-3 * good + 50, rare, close, np.full(size, 0.1)]), labels


def drawn(generator, size=SIZE, draws=DRAWS):
    chosen = generator.integers(0, size, (draws, size))
    return np.stack([np.bincount(one, minlength=size) for one in chosen], axis=1).astype(float)


def written_out(metric, answers, labels, counts):
    """The slow way: what ``score`` says of logits with that answer, example by example."""
    found = np.zeros((len(answers), counts.shape[1]))
    for run, values in enumerate(answers):
        for draw, times in enumerate(counts.T.astype(int)):
            logits = np.eye(2)[values.astype(int)] if metric in CLASSES else values[:, None]
            found[run, draw] = score(
                metric, np.repeat(logits, times, axis=0), np.repeat(labels, times)
            )
    return found


@pytest.mark.parametrize("metric", METRICS)
@pytest.mark.parametrize("size", [1, 2, 5, SIZE])
def test_scores_are_those_of_the_examples_written_out(metric, size):
    generator = np.random.default_rng(size)
    answers, labels = (classes if metric in CLASSES else numbers)(generator, max(size, 2))
    answers, labels = answers[:, :size], labels[:size]
    counts = drawn(generator, size)
    expected = written_out(metric, answers, labels, counts)
    np.testing.assert_allclose(
        scores(metric, answers, labels, counts), expected, rtol=1e-9, atol=1e-9
    )
    if size == SIZE:
        assert np.ptp(expected[0]) > 5  # draws differ, and so would a wrong one


@pytest.mark.parametrize("metric", ["matthews", "pearson", "spearman", "pearson_spearman"])
def test_resamples_with_one_answer_or_one_label_score_exactly_nothing(metric):
    answers, labels = np.array([[0.1, 0.1, 0.7]]), np.array([0.3, 0.3, 2.9])
    counts = np.array([[3.0, 1.0, 0.0], [0.0, 2.0, 0.0], [0.0, 0.0, 3.0]])
    assert scores(metric, answers, labels, counts).tolist() == [[0.0, 0.0, 0.0]]
    flat = np.full(3, 0.1)
    assert scores(metric, answers, flat, np.ones((3, 1))).tolist() == [[0.0]]


def test_more_than_two_classes_have_an_accuracy():
    answers, labels = np.array([[0.0, 1.0, 2.0, 2.0]]), np.array([0.0, 2.0, 2.0, 1.0])
    counts = np.array([[4, 0, 1], [0, 2, 1], [0, 1, 1], [0, 1, 1]], dtype=float)
    assert scores("accuracy", answers, labels, counts).tolist() == [[100.0, 25.0, 50.0]]


def test_every_metric_can_be_resampled_and_no_other():
    assert RESAMPLED.keys() == METRICS.keys()
    with pytest.raises(ConfigError, match='No metric "recall" can be resampled; known: accuracy'):
        scores("recall", np.ones((1, 2)), np.ones(2), np.ones((2, 1)))
