"""Curves of methods: what is drawn equals the formulas, and every method can be drawn."""

import math

import numpy as np
import pytest
import torch

from surge.errors import ConfigError
from surge.method import Method, list_methods, register_method
from surge.methods.irnet import sharpness_at
from surge.study import curves
from surge.study.curves import EPOCHS, POINTS, SHOWN, draw, measure

WEIGHTS = curves.CHANNELS * math.prod(curves.KERNEL)


def columns(found, rule, epoch=0):
    points = [p for p in found.points if p.rule == rule and p.epoch == epoch]
    return (np.array([getattr(p, key) for p in points]) for key in ("value", "binary", "factor"))


@pytest.fixture
def counting(monkeypatch):
    """A method of the user's own, whose input rule sharpens while its weight rule stays."""
    from surge import method

    monkeypatch.setattr(method, "_registry", dict(method._registry))

    @register_method("counting", bits=(1, 32), reference="nobody")
    class Counting(Method):
        """Real inputs times the epoch."""

        epoch = 0

        def binarize(self, z):
            return z * self.epoch

        def surrogate_is_zero(self, z):
            return torch.zeros_like(z, dtype=torch.bool)

        def on_epoch(self, epoch, epochs):
            self.epoch = epoch

    return "counting"


@pytest.mark.parametrize("name", list_methods())
def test_every_method_is_measured(name):
    found = measure(name)
    assert found.epochs in (SHOWN, SHOWN[:1])
    assert len(found.points) == len(found.epochs) * (POINTS + WEIGHTS)
    assert all(math.isfinite(p.binary) and math.isfinite(p.factor) for p in found.points)


def test_bireal_input_is_the_triangle():
    z, binary, factor = columns(measure("bireal"), "input")
    assert np.array_equal(binary, np.where(z >= 0, 1.0, -1.0))
    assert np.allclose(factor, np.maximum(0, 2 - 2 * np.abs(z)))


def test_bireal_weight_is_clipped_and_scaled():
    w, binary, factor = columns(measure("bireal"), "weight")
    assert np.allclose(binary, np.abs(w).mean() * np.where(w >= 0, 1.0, -1.0))
    assert np.array_equal(factor, (np.abs(w) <= 1).astype(float))


def test_irnet_sharpens_with_the_epoch():
    found = measure("irnet")
    for epoch in SHOWN:
        z, _, factor = columns(found, "input", epoch)
        k, t = sharpness_at(epoch / EPOCHS, 0.1, 10.0)
        assert np.allclose(factor, k * t * (1 - np.tanh(t * z) ** 2), atol=1e-5)


def test_recu_weight_factor_is_the_diagonal_of_the_jacobian():
    w, binary, factor = columns(measure("recu"), "weight", epoch=50)
    n, centred = len(w), w - w.mean()
    std = np.sqrt(w.var(ddof=1) + 1e-5)
    w1 = 2 * math.sqrt(2) * centred / std
    tau = (0.99 - 0.85) / (math.e - 1) * (math.exp(0.5) - 1) + 0.85
    inside = np.abs(w1) <= -np.abs(w1).mean() * math.log(2 - 2 * tau)
    expected = 2 * math.sqrt(2) / std * (1 - 1 / n - centred**2 / (n - 1) / std**2) * inside
    assert np.array_equal(binary, np.where(w1 >= 0, 1.0, -1.0))
    assert np.allclose(factor, expected, atol=1e-4)
    assert 0 < inside.sum() < n


def test_flat_zone_is_where_the_method_says():
    found = measure("bnn")
    flat = {p.value for p in found.points if p.flat}
    assert flat == {p.value for p in found.points if p.rule == "input" and abs(p.value) > 1}


def test_measuring_leaves_the_random_stream_alone():
    before = torch.get_rng_state()
    first = measure("recu")
    assert torch.equal(torch.get_rng_state(), before)
    torch.rand(3)
    assert measure("recu") == first


def test_seed_chooses_the_filter():
    assert measure("bnn", seed=1) != measure("bnn")


def test_series_is_one_where_epochs_are_alike(counting):
    found = measure(counting)
    assert list(found.series("weight", "factor")) == ["all epochs"]
    assert list(found.series("input", "factor")) == [f"epoch {e} of {EPOCHS}" for e in SHOWN]


def test_rows_hold_every_point():
    found = measure("bnn")
    rows = found.rows()
    assert len(rows) == len(found.points)
    assert set(rows[0]) == {"method", "rule", "epoch", "value", "binary", "factor", "flat"}


def labels(figure):
    return [text.get_text() for legend in figure.legends for text in legend.get_texts()]


def test_draw_without_schedule_has_four_panels_and_no_legend():
    figure = draw(measure("bireal"))
    assert [axes.get_title(loc="left") for axes in figure.axes] == [
        "Inputs: forward",
        "Inputs: backward",
        "Weights: forward",
        "Weights: backward",
    ]
    assert labels(figure) == []
    shaded = figure.axes[1].collections
    assert shaded and not figure.axes[0].collections


def test_draw_with_schedule_names_the_epochs(counting):
    figure = draw(measure(counting))
    assert labels(figure) == ["all epochs", *(f"epoch {e} of {EPOCHS}" for e in SHOWN)]
    assert len(figure.axes[1].lines) == len(SHOWN)


def test_unknown_method_is_refused_with_a_near_miss():
    with pytest.raises(ConfigError, match='Did you mean "recu"'):
        measure("recuu")
