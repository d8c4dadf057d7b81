"""Two noisy gradients with known moments: what the theorem is about, and draws of them.

The formulas are in :mod:`surge.study.theory.theorem`; here are the numbers they are made of.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
Rng = np.random.Generator

_CHUNK = 8192  # mini-batches held in memory at a time


@dataclass(frozen=True, eq=False)
class MomentModel:
    """Two Gaussian gradients driven by one standard normal vector: g = mean + noise @ normal.

    ``bias`` is delta_b = g* - mean_b. The noise matrices have one column per source of noise: a
    source that both paths use correlates them.
    """

    mean_b: Array
    mean_a: Array
    bias: Array
    noise_b: Array
    noise_a: Array

    @cached_property
    def terms(self) -> tuple[float, float, float]:
        """<delta_b, mu_a>, tr Cov(g_b, g_a) and |mu_a|^2 + tr Var(g_a)."""
        curvature = self.mean_a @ self.mean_a + np.sum(self.noise_a**2)
        covariance = np.sum(self.noise_b * self.noise_a)
        return float(self.bias @ self.mean_a), float(covariance), float(curvature)

    @property
    def closed_form(self) -> float:
        """The paper's optimal scale."""
        return self.terms[0] / self.terms[2]

    @property
    def corrected(self) -> float:
        """The optimal scale, correlated noises included."""
        gain, covariance, curvature = self.terms
        return (gain - covariance) / curvature

    @property
    def ratios(self) -> tuple[float, float, float]:
        """Cosine of delta_b and mu_a, |delta_b| / |mu_b|, tr Var(g_a) / |mu_a|^2."""
        b, a, bias = (float(np.linalg.norm(x)) for x in (self.mean_b, self.mean_a, self.bias))
        return self.terms[0] / (bias * a), bias / b, self.terms[2] / a**2 - 1.0

    @property
    def eta(self) -> float:
        """The corollary's eta for these moments; negative where the closed form is."""
        cosine, bias_ratio, noise_ratio = self.ratios
        return bias_ratio * cosine / (1.0 + noise_ratio)

    def expected_error(self, scale: float, scale_square: float | None = None) -> float:
        """Return E|g_b + scale g_a - g*|^2; a random, independent scale is given by two moments."""
        square = scale**2 if scale_square is None else scale_square
        start = float(self.bias @ self.bias + np.sum(self.noise_b**2))
        gain, covariance, curvature = self.terms
        return start - 2.0 * scale * (gain - covariance) + square * curvature


@dataclass(frozen=True, eq=False)
class Draws:
    """Four numbers per mini-batch, enough for the error at every scale.

    ``residual`` |g_b - g*|^2, ``cross`` <g* - g_b, g_a>, ``square_a`` |g_a|^2, and ``ratio``
    |g_b| / (|g_a| + 1e-8), the AGS scale for eta = 1.
    """

    residual: Array
    cross: Array
    square_a: Array
    ratio: Array

    def minimiser(self) -> tuple[float, float]:
        """Return the scale with the smallest mean error and its standard error (delta method)."""
        value = float(self.cross.mean() / self.square_a.mean())
        spread = _standard_error(self.cross - value * self.square_a)
        return value, spread / float(self.square_a.mean())

    def mean_error(self, scale: float) -> tuple[float, float]:
        """Return the mean squared error at a scale and its standard error."""
        error = self.residual - 2.0 * scale * self.cross + scale**2 * self.square_a
        return float(error.mean()), _standard_error(error)


def _standard_error(values: Array) -> float:
    return float(values.std(ddof=1) / np.sqrt(len(values)))


def sample(model: MomentModel, count: int, rng: Rng) -> Draws:
    """Draw ``count`` mini-batch gradients."""
    parts = []
    for start in range(0, count, _CHUNK):
        normal = rng.standard_normal((min(_CHUNK, count - start), model.noise_b.shape[1]))
        g_b = model.mean_b + normal @ model.noise_b.T
        g_a = model.mean_a + normal @ model.noise_a.T
        missing = model.mean_b + model.bias - g_b
        norm_b, norm_a = np.linalg.norm(g_b, axis=1), np.linalg.norm(g_a, axis=1)
        residual, cross = np.sum(missing**2, axis=1), np.sum(missing * g_a, axis=1)
        parts.append((residual, cross, norm_a**2, norm_b / (norm_a + 1e-8)))
    return Draws(*(np.concatenate(column) for column in zip(*parts, strict=True)))


def independent_model(
    mean_b: Array, mean_a: Array, bias: Array, *, variance_b: Array, variance_a: Array
) -> MomentModel:
    """Return the theorem's model: given moments, one noise source per element and path."""
    nothing = np.zeros((len(mean_b), len(mean_b)))
    noise_b = np.hstack([np.diag(np.sqrt(variance_b)), nothing])
    noise_a = np.hstack([nothing, np.diag(np.sqrt(variance_a))])
    return MomentModel(mean_b, mean_a, bias, noise_b, noise_a)


def shared_model(
    weight_b: Array, weight_a: Array, mask: Array, *, mean: Array, variance: Array
) -> MomentModel:
    """Return the model of a real layer: g_b = mask (W_b^T G) and g_a = W_a^T G for one random G.

    The mask is clipped STE's, 1 where |x| <= 1; the reference is the gradient without clipping, so
    delta_b is exactly what clipping throws away: the case SURGE is made for.
    """
    through, spread = weight_b.T @ mean, np.sqrt(variance)
    noise_b = mask[:, None] * weight_b.T * spread
    bias = (1.0 - mask) * through
    return MomentModel(mask * through, weight_a.T @ mean, bias, noise_b, weight_a.T * spread)
