"""The answers to the paper's sentences about its toy problem."""

from dataclasses import fields

import numpy as np
import pytest

from surge.study.theory import toy_claims
from surge.study.theory.toy import ARMS, Log
from surge.study.theory.toy_claims import (
    drift,
    final_loss,
    judge,
    representative,
    volatility,
    wander,
)

STEPS, SEEDS = 80, 8


def made(loss=0.01, norm=2.0, alpha=0.5, scale=0.01, *, seed=0, wobble=0.0):
    """Return a log with constant levels, a little spread over seeds, and a wobble over steps."""
    rng = np.random.default_rng(seed)
    spread = 1 + 0.01 * rng.standard_normal(SEEDS)
    wave = 1 + wobble * np.resize([1.0, -1.0], (STEPS, 1))
    flat = np.ones((STEPS, 1)) * spread
    layered = np.stack([flat, flat], axis=2)
    values = {
        "x": flat, "y": flat, "loss": loss * flat * wave, "distance": flat,
        "scale": scale * layered, "norm_main": norm * layered * wave[:, :, None],
        "norm_auxiliary": layered, "alpha_w": alpha * layered, "alpha_a": alpha * layered,
    }  # fmt: skip
    assert set(values) == {field.name for field in fields(Log)}
    return Log(**values)


def logs(**changed):
    found = {name: made(seed=number) for number, name in enumerate(ARMS)}
    return found | changed


def verdicts(found, claim):
    return [c.verdict for c in judge(found) if c.claim == claim]


def test_every_claim_of_the_paper_is_answered_for_both_methods_and_layers():
    counts = {}
    for claim in judge(logs()):
        counts[claim.claim] = counts.get(claim.claim, 0) + 1
    assert counts == {
        "lower loss": 2,
        "scale converges": 4,
        "larger weight norm": 4,
        "steadier weight norm": 4,
        "higher alpha_w": 4,
        "higher alpha_a": 4,
        "noise ends worse": 2,
        "noise is more volatile": 2,
    }


def test_lower_loss_is_supported_opposite_or_neither():
    better, worse, same = made(loss=0.001, seed=9), made(loss=0.1, seed=9), made(seed=9)
    assert verdicts(logs(**{"STE+SURGE": better}), "lower loss")[0] == "supported"
    assert verdicts(logs(**{"STE+SURGE": worse}), "lower loss")[0] == "opposite"
    assert verdicts(logs(**{"STE+SURGE": same}), "lower loss")[0] == "not supported"


def test_norm_and_alphas_count_upwards():
    higher = made(norm=3.0, alpha=0.6, seed=9)
    found = logs(**{"Bi-Real+SURGE": higher})
    for claim in ("larger weight norm", "higher alpha_w", "higher alpha_a"):
        assert verdicts(found, claim)[2:] == ["supported", "supported"]


def test_steadier_norm_counts_downwards():
    calm, restless = made(wobble=0.001), made(wobble=0.1)
    found = logs(**{"STE": restless, "STE+SURGE": calm})
    assert verdicts(found, "steadier weight norm")[:2] == ["supported", "supported"]


def test_noise_is_judged_against_surge_and_against_nothing():
    found = logs(**{"STE+Noise": made(loss=0.1, wobble=0.5, seed=9)})
    assert verdicts(found, "noise ends worse") == ["supported", "supported"]
    assert verdicts(found, "noise is more volatile") == ["supported", "supported"]


def test_scale_that_keeps_growing_has_not_converged():
    rising = made(seed=2)
    steps = np.linspace(1.0, 20.0, STEPS)[:, None, None]
    object.__setattr__(rising, "scale", rising.scale * steps**4)
    assert verdicts(logs(**{"STE+SURGE": rising}), "scale converges")[:2] == ["opposite"] * 2
    assert verdicts(logs(), "scale converges")[:2] == ["supported"] * 2


def test_difference_interval_and_effect_equal_hand_computation():
    found = logs()
    (first, *_) = judge(found)
    pairs = final_loss(found["STE+SURGE"]) - final_loss(found["STE"])
    half = 2.364624 * pairs.std(ddof=1) / SEEDS**0.5
    assert first.difference == pytest.approx(pairs.mean())
    assert (first.low, first.high) == pytest.approx((pairs.mean() - half, pairs.mean() + half))
    assert first.effect == pytest.approx(pairs.mean() / pairs.std(ddof=1))
    assert first.n == SEEDS
    assert first.shown_by == sum(pairs < 0)


def test_seeds_that_show_a_claim_are_counted_on_its_side():
    norms = np.array([3.0, 3.0, 3.0, 1.0, 1.0, 2.0, 3.0, 3.0])
    mixed, plain = made(), made()
    plain.norm_main[:] = 2.0
    mixed.norm_main[:] = norms[:, None]
    found = judge(logs(**{"STE": plain, "STE+SURGE": mixed}))
    larger = [c.shown_by for c in found if c.claim == "larger weight norm"]
    assert larger[:2] == [5, 5]


def test_differences_without_spread_have_no_effect_size():
    same = made()
    found = dict.fromkeys(ARMS, same)
    assert {c.effect for c in judge(found) if c.claim == "lower loss"} == {None}
    assert verdicts(found, "lower loss") == ["not supported"] * 2


def test_measures_equal_hand_computation():
    ramp = np.arange(1.0, 81.0)[:, None]
    eighths = ramp[60:70].mean(), ramp[70:].mean()
    assert drift(ramp)[0] == pytest.approx((eighths[1] - eighths[0]) / np.mean(eighths))
    seeds = ramp * [1.0, 3.0]
    assert wander(seeds) == pytest.approx(ramp[20:].std() / ramp[20:].mean())
    jumping = made(wobble=0.5)
    assert volatility(jumping) == pytest.approx(np.log10(1.5 / 0.5))
    jumping.loss[: STEPS // 2] = 1e-6  # before the second half
    assert volatility(jumping) == pytest.approx(np.log10(1.5 / 0.5))


def test_final_loss_is_that_of_the_last_tenth():
    log = made()
    found = final_loss(log)
    log.loss[: -STEPS // 10] = 1.0
    assert final_loss(log) == pytest.approx(found)


def test_final_loss_has_a_floor():
    assert final_loss(made(loss=0.0)) == pytest.approx(np.log10(toy_claims.FLOOR))


def test_representative_seed_has_the_median_difference():
    found = logs()
    seed = representative(found)
    pairs = final_loss(found["STE+SURGE"]) - final_loss(found["STE"])
    assert (pairs < pairs[seed]).sum() == (SEEDS - 1) // 2
