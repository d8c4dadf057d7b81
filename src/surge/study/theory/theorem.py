r"""The optimal scale of the auxiliary gradient, checked by Monte Carlo (paper, section 4).

With g_b = mu_b + noise, g_a = mu_a + noise, a reference g* and the bias delta_b = g* - mu_b,

    E|g_b + scale g_a - g*|^2 = |delta_b|^2 + tr Var(g_b)
        - 2 scale (<delta_b, mu_a> - tr Cov(g_b, g_a)) + scale^2 (|mu_a|^2 + tr Var(g_a))

    closed form (theorem)   <delta_b, mu_a> / (|mu_a|^2 + tr Var(g_a))
    corrected minimiser     (<delta_b, mu_a> - tr Cov(g_b, g_a)) / (|mu_a|^2 + tr Var(g_a))
    AGS (corollary)         eta |g_b| / (|g_a| + 1e-8), eta = bias_ratio cosine / (1 + noise_ratio)

The theorem assumes tr Cov(g_b, g_a) = 0, but both gradients are linear in the same output gradient
G. The corollary assumes that the cosine of delta_b and mu_a, bias_ratio = |delta_b| / |mu_b| and
noise_ratio = tr Var(g_a) / |mu_a|^2 stay what eta was set for; here each drifts once, eta stays.
Unsaid in the paper: the norm of one mini-batch holds its noise, |g|^2 ~ |mu|^2 (1 + noise_ratio).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from surge.errors import ConfigError
from surge.study import figures
from surge.study.figures import COLOURS, Mark, Row
from surge.study.theory.moments import (
    Draws,
    MomentModel,
    Rng,
    independent_model,
    sample,
    shared_model,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Z_LIMIT = 4.0
"""A formula further from the estimate than this many standard errors is called wrong."""
PAPER_ETA = 0.01
"""The eta the paper trains with."""


@dataclass(frozen=True, eq=False)
class Scenario:
    """One set of moments, the premise it is about, and the eta that AGS uses there."""

    name: str
    title: str
    premise: str
    model: MomentModel
    eta: float


_LAYERS = (
    ("shared-independent", "Shared G, $W_a$ drawn on its own"),
    ("shared-aligned", "Shared G, $W_a$ = latent $W_b$"),
    ("shared-clipped", "Shared G, clipped scope only"),
)
_DRIFTS: tuple[tuple[str, str, dict[str, float]], ...] = (
    ("corollary", "Norm ratio: premises hold", {}),
    ("no-alignment", "(i) fails: no alignment", {"cosine": 0.0}),
    ("negative-alignment", "(i) fails: negative alignment", {"cosine": -0.7}),
    ("large-bias", "(ii) fails: large bias", {"bias_ratio": 4.0}),
    ("large-noise", "(iii) fails: large noise", {"noise": 8.0}),
)


def scenarios(*, dimension: int, noise: float, seed: int) -> tuple[Scenario, ...]:
    """Build the nine scenarios: noises independent or shared, then the corollary's premises."""
    rng = np.random.default_rng([seed, 0])
    first = _angled_model(rng, dimension)
    found = [Scenario("independent", "Independent noises", "holds", first, first.eta)]
    for (name, title), model in zip(_LAYERS, _layer_models(rng, dimension, noise), strict=True):
        premise = "fails: correlated noises" if model.terms[1] else "holds"
        found.append(Scenario(name, title, premise, model, max(model.eta, 0.0)))
    for name, title, drift in _DRIFTS:
        premise = "fails: " + name.replace("-", " ") if drift else "holds"
        model = _angled_model(rng, dimension, **drift)
        found.append(Scenario(name, title, premise, model, first.eta))
    return tuple(found)


def _angled_model(
    rng: Rng, dimension: int, *, cosine: float = 0.7, bias_ratio: float = 0.8, noise: float = 0.5
) -> MomentModel:
    """Independent noises of uneven variance, |mu_b| = 1, |mu_a| = 2, exact ratios."""
    first, second, third = np.linalg.qr(rng.standard_normal((dimension, 3)))[0].T
    toward_a = 0.8 * first + 0.6 * second
    bias = bias_ratio * (cosine * toward_a + (1.0 - cosine**2) ** 0.5 * third)
    var_b, var_a = (rng.dirichlet(np.full(dimension, 2.0)) * x for x in (0.5, 4.0 * noise))
    return independent_model(first, 2.0 * toward_a, bias, variance_b=var_b, variance_a=var_a)


def _layer_models(rng: Rng, dimension: int, noise: float) -> list[MomentModel]:
    """One layer with half its inputs clipped: W_a fresh, W_a = latent W_b, the latter masked."""
    latent, fresh = rng.standard_normal((2, dimension // 2, dimension)) / dimension**0.5
    weight_b = np.mean(np.abs(latent)) * np.where(latent < 0.0, -1.0, 1.0)
    mask = rng.permutation(np.arange(dimension) % 2).astype(np.float64)
    mean = rng.standard_normal(dimension // 2)
    variance = noise * (mean @ mean) * rng.dirichlet(np.full(dimension // 2, 2.0))
    choices = (fresh, latent, latent * (1.0 - mask))
    return [shared_model(weight_b, a, mask, mean=mean, variance=variance) for a in choices]


@dataclass(frozen=True)
class Verdict:
    """One line of the table. Excess: expected error over the smallest possible one, minus 1."""

    scenario: str
    premise: str
    cosine: float
    bias_ratio: float
    noise_ratio: float
    closed_form: float
    corrected: float
    estimate: float
    standard_error: float
    z_closed_form: float
    z_corrected: float
    eta: float
    ags_scale: float
    ags_excess: float
    paper_eta_excess: float
    no_compensation_excess: float
    best_eta: float
    best_eta_excess: float
    formula_verdict: str
    ags_verdict: str


@dataclass(frozen=True)
class Result:
    """A scenario's verdict, the points of its panel, and its excess error against eta."""

    title: str
    verdict: Verdict
    points: tuple[Row, ...]
    etas: tuple[Row, ...]


def run_study(
    *, samples: int = 20_000, dimension: int = 64, noise: float = 0.5, seed: int = 0
) -> tuple[Result, ...]:
    """Draw every scenario and judge it.

    ``noise`` is tr Var(G) / |E G|^2 of the scenarios with a shared output gradient.

    Raises:
        ConfigError: fewer than 100 samples, fewer than 8 dimensions, or noise not above 0.
    """
    if samples < 100 or dimension < 8 or not 0.0 < noise < float("inf") or seed < 0:
        raise ConfigError(
            "the study needs --samples >= 100, --dimension >= 8, --seed >= 0 and a finite "
            f"--noise > 0; got {samples}, {dimension}, {seed} and {noise:g}"
        )
    results = []
    for index, scenario in enumerate(scenarios(dimension=dimension, noise=noise, seed=seed)):
        draws = sample(scenario.model, samples, np.random.default_rng([seed, index + 1]))
        results.append(judge(scenario, draws))
    return tuple(results)


def judge(scenario: Scenario, draws: Draws) -> Result:
    """Compare the Monte-Carlo minimiser with both formulas, and AGS with the optimum."""
    model, eta = scenario.model, scenario.eta
    value, error = draws.minimiser()
    smallest = model.expected_error(model.corrected)
    # AGS uses the norms of the step before: independent of the draw it is applied to.
    ratio, square = float(draws.ratio.mean()), float((draws.ratio**2).mean())

    def excess(eta: float) -> float:
        return model.expected_error(eta * ratio, eta**2 * square) / smallest - 1.0

    best = max(0.0, model.corrected * ratio / square)
    ags, none = excess(eta), excess(0.0)
    z_closed, z_corrected = ((value - x) / error for x in (model.closed_form, model.corrected))
    verdict = Verdict(
        scenario.name, scenario.premise, *model.ratios, model.closed_form, model.corrected,
        value, error, z_closed, z_corrected, eta, eta * ratio, ags, excess(PAPER_ETA), none,
        best, excess(best), _formula_verdict(z_closed, z_corrected), _ags_verdict(ags, none),
    )  # fmt: skip
    grid = np.geomspace(1e-3, 10.0, 161).tolist()
    etas = [{"scenario": scenario.name, "eta": x, "excess": excess(x)} for x in grid]
    points = _points(model, draws, verdict, ags_spread=eta * float(draws.ratio.std()))
    return Result(scenario.title, verdict, tuple(points), tuple(etas))


def _formula_verdict(z_closed: float, z_corrected: float) -> str:
    if abs(z_corrected) >= Z_LIMIT:
        return "both wrong"
    return "closed form right" if abs(z_closed) < Z_LIMIT else "closed form wrong"


def _ags_verdict(ags: float, none: float) -> str:
    return "near optimal" if ags < 0.01 else "helps" if ags < none else "harms"


def _points(model: MomentModel, draws: Draws, found: Verdict, *, ags_spread: float) -> list[Row]:
    """Return everything the panel shows, errors relative to the one without compensation."""
    unit = model.expected_error(0.0)
    marked = (0.0, found.closed_form, found.corrected, found.ags_scale)
    beyond = 0.35 * (max(marked) - min(marked)) + 0.02
    span = (min(marked) - beyond, max(marked) + beyond)
    rows: list[Row] = []

    def add(series: str, scale: float, *, across: float = 0.0, up: float = 0.0) -> None:
        mean, error = draws.mean_error(scale) if up else (model.expected_error(scale), 0.0)
        bars = {"scale_bar": across, "error_bar": up * error / unit}
        place = {"scale": scale, "error": mean / unit}
        rows.append({"scenario": found.scenario, "series": series, **place, **bars})

    for scale in np.linspace(*span, 81).tolist():
        add("expected error", scale)
    for scale in np.linspace(*span, 11).tolist():
        add("Monte-Carlo error", scale, up=2.0)
    add("closed form (paper)", found.closed_form)
    add("corrected optimum", found.corrected)
    add("AGS", found.ags_scale, across=ags_spread)
    add("Monte-Carlo minimiser", found.estimate, across=Z_LIMIT * found.standard_error)
    return rows


_MARKS: dict[str, Mark] = {
    "corrected optimum": Mark("#f6c6a5", "upright", width=5.0),
    "closed form (paper)": Mark(COLOURS["blue"], "upright", dashes="--", width=1.7),
    "expected error": Mark(COLOURS["ink"], "line", width=1.3),
    "Monte-Carlo error": Mark(COLOURS["grey"], "hollow", size=3.6),
    "AGS": Mark(COLOURS["green"], "triangle", size=7.0),
    "Monte-Carlo minimiser": Mark(COLOURS["vermilion"], "dot", size=4.5),
}


def draw(results: Sequence[Result]) -> Figure:
    """Return expected squared error against scale, one panel per scenario."""
    with figures.look():
        figure, panels = figures.new_figure(-(-len(results) // 3), 3)
        for letter, axes, result in zip("abcdefghi", panels, results, strict=True):
            found = result.verdict
            facts = (
                f"z: closed form {found.z_closed_form:+.1f}, corrected {found.z_corrected:+.1f}\n"
                f"AGS, eta {found.eta:.2f}: error {found.ags_excess:.1%} above the smallest"
            )
            figures.panel_title(axes, f"{letter}  {result.title}", facts)
            figures.draw_series(axes, result.points, _MARKS, x="scale", y="error")
            axes.axhline(1.0, color=COLOURS["grey"], linewidth=0.8, linestyle=":", zorder=0)
            _draw_zoom(axes.inset_axes((0.31, 0.66, 0.36, 0.22)), result)
        figures.frame(figure, panels, x="scale", y="squared error / without compensation")
    return figure


def _draw_zoom(axes: Axes, result: Result) -> None:
    """Show the minimiser and both formulas within six standard errors of it."""
    place, error = result.verdict.estimate, result.verdict.standard_error
    marks = {name: mark for name, mark in _MARKS.items() if mark.kind in ("upright", "dot")}
    rows = [{**row, "error": 0.0} for row in result.points]
    figures.draw_series(axes, rows, marks, x="scale", y="error")
    axes.set(xlim=(place - 6.0 * error, place + 6.0 * error), xticks=(), yticks=())
    axes.set_title(f"zoom: bar ± {Z_LIMIT:g}, box ± 6 SE", fontsize=6.5, weight="normal", pad=2.0)
    axes.spines[:].set_visible(True)


def draw_eta(results: Sequence[Result]) -> Figure:
    """Return the relative excess error of AGS against eta, one line per corollary scenario."""
    colours = (COLOURS[x] for x in ("ink", "purple", "vermilion", "orange", "blue"))
    with figures.look():
        figure, (axes,) = figures.new_figure(panel=(6.4, 4.2))
        for colour, result in zip(colours, results[-len(_DRIFTS) :], strict=True):
            found, mark = result.verdict, Mark(colour, "line", width=1.8)
            rows = [{**row, "series": result.title} for row in result.etas]
            figures.draw_series(axes, rows, {result.title: mark}, x="eta", y="excess")
            axes.plot(found.best_eta, found.best_eta_excess, "o", color=colour)
        for eta, words in ((PAPER_ETA, "the paper's "), (results[-1].verdict.eta, "corollary's ")):
            axes.axvline(eta, color=COLOURS["grey"], linewidth=0.9, linestyle=":")
            axes.annotate(words, (eta, 0.96), ha="right", fontsize=8)
        axes.set(xscale="log", xlim=(1e-3, 10.0), ylim=(-0.03, 1.0))
        axes.yaxis.set_major_formatter(lambda value, _: f"{value:.0%}")
        figures.frame(figure, [axes], x="eta", y="error of AGS above the smallest")
    return figure
