"""The premises of the theorem, against moments written out with NumPy."""

import numpy as np
import pytest
import torch
from torch import nn

import surge
from surge.compensation.premises import _conclude, _Sums, measure_premises
from surge.compensation.reference import LayerGradients, measure
from tests.compensation.test_reference import batch_loss, network


def drawn(count=60_000, dimension=6):
    """Gradients with known moments: shared noise, so that both paths are correlated."""
    rng = np.random.default_rng(0)
    mu_b, mu_a, mu_r = rng.standard_normal((3, dimension))
    shared = rng.standard_normal((count, dimension))
    b = mu_b + shared
    a = mu_a + 0.5 * shared + rng.standard_normal((count, dimension))
    r = mu_r + 0.1 * rng.standard_normal((count, dimension))
    return (mu_b, mu_a, mu_r), (b, a, r)


def test_premises_find_the_moments_they_were_drawn_from():
    (mu_b, mu_a, mu_r), (b, a, r) = drawn()
    sums = _Sums()
    for start in range(0, len(b), 20_000):
        part = slice(start, start + 20_000)
        # Gradients of a mean loss: divided by the size of the batch.
        held = [torch.tensor(x[part] / 20_000) for x in (b, a, r)]
        sums.add(LayerGradients(*held, held[0], held[0]), 0.5)
    found = _conclude(sums, 0.5)
    d, delta = len(mu_b), mu_r - mu_b
    curvature = mu_a @ mu_a + 1.25 * d
    expected = {
        "closed_form": delta @ mu_a / curvature,
        "corrected": (delta @ mu_a - 0.5 * d) / curvature,
        "alignment": delta @ mu_a / np.linalg.norm(delta) / np.linalg.norm(mu_a),
        "bias_ratio": np.linalg.norm(delta) / np.linalg.norm(mu_b),
        "noise_ratio": 1.25 * d / (mu_a @ mu_a),
        "noise_correlation": 0.5 / 1.25**0.5,
    }
    for key, value in expected.items():
        assert getattr(found, key) == pytest.approx(value, rel=0.03, abs=0.01), key
    eta = found.bias_ratio * found.alignment / (1 + found.noise_ratio)
    assert found.corollary_eta == pytest.approx(eta)
    assert found.images == 60_000


def test_few_images_do_not_inflate_the_means():
    """Pure noise around zero: the mean of few draws is not zero, its unbiased square is."""
    rng = np.random.default_rng(1)
    squares = []
    for _ in range(400):
        sums = _Sums()
        held = torch.tensor(rng.standard_normal((4, 50)))
        sums.add(LayerGradients(held, held, held, held, held), 0.0)
        squares.append(sums.means("bb") / sums.mean("bb"))
    assert abs(np.mean(squares)) < 0.02


def test_paired_optimum_of_one_batch_is_that_of_the_reference():
    model, compensation = network()
    gradients = measure(model, compensation, lambda: batch_loss(model))
    found = measure_premises(model, compensation, [lambda: batch_loss(model)])
    for name, held in gradients.items():
        assert found[name]["paired"] == pytest.approx(float(held.optimum), rel=1e-4)
        cosine = torch.cosine_similarity(held.main.flatten(), held.reference.flatten(), dim=0)
        assert found[name]["cosine_main"] == pytest.approx(float(cosine), rel=1e-4)
        assert found[name]["scale"] == pytest.approx(compensation.scales()[name])


def test_one_image_has_no_moments():
    net = nn.Sequential(nn.Linear(8, 8), surge.BinaryLinear(8, 8), nn.Linear(8, 2))
    compensation, x = surge.compensate_(net), torch.randn(1, 8)
    (found,) = measure_premises(net, compensation, [lambda: net(x).square().mean()]).values()
    assert found["images"] == 1 and found["paired"] is not None
    assert found["alignment"] is found["closed_form"] is found["noise_ratio"] is None
