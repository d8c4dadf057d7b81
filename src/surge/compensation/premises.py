r"""What the theorem and its corollary assume, measured on a network while it trains.

Every image of some batches gives one draw of g_b, g_a and of g*, the gradient of the smooth network
(:mod:`surge.compensation.reference`), all at the tensor that enters sign. With mu their means,
delta_b = mu* - mu_b and tr Cov the covariance over the images::

    closed form   <delta_b, mu_a> / E|g_a|^2                        the theorem: noises uncorrelated
    corrected     (<delta_b, mu_a> - tr Cov(g_b, g_a)) / E|g_a|^2   the minimiser for a fixed g*
    paired        E<g* - g_b, g_a> / E|g_a|^2                       g* of the same image instead

Products of means leave out an image's product with itself, so that noise does not inflate them.
BatchNorm lets the images of a batch see each other; they are draws up to that.
"""

import math
from collections.abc import Iterable
from dataclasses import asdict, dataclass

from torch import Tensor, nn

from surge.compensation.handle import Compensation
from surge.compensation.reference import SHARPNESS, LayerGradients, Loss, measure

_PAIRS = ("bb", "aa", "rr", "ba", "rb", "ra")


@dataclass(frozen=True)
class Premises:
    """One layer, over all images of the measured batches; None where a number does not exist."""

    images: int
    scale: float
    """What is in use: AGS's choice."""
    closed_form: float | None
    corrected: float | None
    paired: float | None
    alignment: float | None
    """Cosine of delta_b and mu_a; premise (i) wants it positive and steady."""
    bias_ratio: float | None
    """|delta_b| / |mu_b|; premise (ii)."""
    noise_ratio: float | None
    """tr Var(g_a) / |mu_a|^2; premise (iii)."""
    noise_correlation: float | None
    """tr Cov(g_b, g_a) / sqrt(tr Var(g_b) tr Var(g_a)); the theorem sets it to 0."""
    corollary_eta: float | None
    """bias_ratio alignment / (1 + noise_ratio): the eta that the corollary asks for."""
    paired_alignment: float | None
    """Cosine of g* - g_b and g_a, image by image."""
    cosine_main: float | None
    """Mean over batches of cos(g_b, g*)."""
    cosine_total: float | None
    """Mean over batches of cos(g_b + scale g_a, g*)."""


class _Sums:
    """Sums over images of the three gradients and of their inner products."""

    def __init__(self) -> None:
        self.images = 0
        self.vectors: dict[str, Tensor] = {}
        self.products = dict.fromkeys(_PAIRS, 0.0)
        self.cosines: list[tuple[float, float]] = []

    def add(self, found: LayerGradients, scale: float) -> None:
        count = len(found.main)
        # The loss is a mean over the batch: times its size, batches of all sizes are alike.
        drawn = {
            key: count * tensor.detach().double().flatten(1)
            for key, tensor in (("b", found.main), ("a", found.auxiliary), ("r", found.reference))
        }
        self.images += count
        for key, rows in drawn.items():
            self.vectors[key] = self.vectors.get(key, 0.0) + rows.sum(dim=0)
        for pair in _PAIRS:
            self.products[pair] += float((drawn[pair[0]] * drawn[pair[1]]).sum())
        total = drawn["b"] + scale * drawn["a"]
        self.cosines.append((_cosine(drawn["b"], drawn["r"]), _cosine(total, drawn["r"])))

    def mean(self, pair: str) -> float:
        """E<u, v> of one image."""
        return self.products[pair] / self.images

    def means(self, pair: str) -> float:
        """<E u, E v>, without bias; no number where there is only one image."""
        if self.images < 2:
            return math.nan
        whole = float(self.vectors[pair[0]] @ self.vectors[pair[1]])
        return (whole - self.products[pair]) / (self.images * (self.images - 1))

    def covariance(self, pair: str) -> float:
        return self.mean(pair) - self.means(pair)


def _cosine(u: Tensor, v: Tensor) -> float:
    return float((u * v).sum() / (u.norm() * v.norm()).clamp(min=1e-300))


def _ratio(above: float, below: float) -> float | None:
    """Return a quotient; None where it has no meaning."""
    found = above / below if below > 0 else math.nan
    return found if math.isfinite(found) else None


def _root(square: float) -> float:
    return math.sqrt(max(square, 0.0))


def _conclude(sums: _Sums, scale: float) -> Premises:
    toward = sums.means("ra") - sums.means("ba")
    bias = _root(sums.means("rr") - 2 * sums.means("rb") + sums.means("bb"))
    main, auxiliary = _root(sums.means("bb")), _root(sums.means("aa"))
    curvature = sums.mean("aa")
    missing = sums.mean("rr") - 2 * sums.mean("rb") + sums.mean("bb")
    paired = sums.mean("ra") - sums.mean("ba")
    alignment = _ratio(toward, bias * auxiliary)
    # An estimated square below zero, or a cosine beyond 1: the images are too few to tell.
    alignment = None if alignment is None or abs(alignment) > 1 else alignment
    bias_ratio = _ratio(bias, main) if bias else None
    noise = _ratio(sums.covariance("aa"), auxiliary**2)
    known = alignment is not None and bias_ratio is not None and noise is not None
    before, after = zip(*sums.cosines, strict=True)
    return Premises(
        images=sums.images,
        scale=scale,
        closed_form=_ratio(toward, curvature),
        corrected=_ratio(toward - sums.covariance("ba"), curvature),
        paired=_ratio(paired, curvature),
        alignment=alignment,
        bias_ratio=bias_ratio,
        noise_ratio=noise,
        noise_correlation=_ratio(
            sums.covariance("ba"), _root(sums.covariance("bb") * sums.covariance("aa"))
        ),
        corollary_eta=bias_ratio * alignment / (1 + noise) if known else None,  # type: ignore[operator]
        paired_alignment=_ratio(paired, _root(missing * curvature)),
        cosine_main=_ratio(sum(before), len(before)),
        cosine_total=_ratio(sum(after), len(after)),
    )


def measure_premises(
    model: nn.Module,
    compensation: Compensation,
    losses: Iterable[Loss],
    *,
    sharpness: float = SHARPNESS,
) -> dict[str, dict[str, float | int | None]]:
    """Measure every compensated layer over several batches; nothing in the model changes.

    ``losses`` are functions, one per batch, that run the model and return its mean loss. Sequences
    are measured as they are batched, the first dimension being the draws.
    """
    sums: dict[str, _Sums] = {}
    scales = compensation.scales()
    for loss in losses:
        found = measure(model, compensation, loss, sharpness=sharpness)
        for name, gradients in found.items():
            sums.setdefault(name, _Sums()).add(gradients, scales[name])
    return {name: asdict(_conclude(held, scales[name])) for name, held in sums.items()}
