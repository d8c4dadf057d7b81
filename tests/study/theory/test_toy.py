"""The batched toy program: its arithmetic, its starts, its logs."""

from dataclasses import replace
from functools import cache

import numpy as np
import pytest
import torch
from torch.nn.functional import linear

from surge.compensation.dual_path import inject, tap
from surge.compensation.scaler import updated_scale
from surge.errors import ConfigError
from surge.functional import sign_clipped
from surge.study.theory import toy
from surge.study.theory.toy import ARMS, ToyOptions, beale, run_arm, start

SMALL = ToyOptions(seeds=3, steps=40, inputs=4, hidden=17)
LAYER_SERIES = ("scale", "norm_main", "norm_auxiliary", "alpha_w", "alpha_a")


@cache
def log(arm, seeds=3):
    return run_arm(ARMS[arm], ToyOptions(seeds=seeds, steps=40, inputs=4, hidden=17))


def unbatched(arm, seed):
    """Train one seed with the package's own tap, inject and updated_scale."""
    x, layers = start(SMALL)
    x = x[seed].clone().requires_grad_()
    parts = []
    for layer in layers:
        names = ("weight", "auxiliary", "alpha_w", "alpha_a", "shift")
        own = {name: getattr(layer, name)[seed].clone().requires_grad_() for name in names}
        parts.append({**own, "scale": layer.scale[seed].flatten()[0].clone()})
    trained = [t for part in parts for t in part.values() if t.requires_grad]
    optimizer = torch.optim.Adam([x, *trained], lr=SMALL.lr, fused=True)
    rows = []
    for _ in range(SMALL.steps):
        level, probes = x, []
        for number, part in enumerate(parts):
            z = (torch.relu(level) if number else level) - part["shift"]
            probe = [torch.zeros((), requires_grad=True) for _ in range(2)]
            tapped = tap(z, probe[0])
            product = linear(ARMS[arm].surrogate(tapped), sign_clipped(part["weight"]))
            level = inject(
                part["alpha_w"] * part["alpha_a"] * product, z, tapped.detach(), part["auxiliary"],
                part["scale"], probe[1], None, None, [], [], [], 1,
            )  # fmt: skip
            probes.append(probe)
        loss = beale(level[0])
        norms = [part["auxiliary"].norm().item() for part in parts]
        scales = [part["scale"].item() for part in parts]
        rows.append([*level[0].tolist(), loss.item(), *scales, *norms])
        optimizer.zero_grad()
        loss.backward()
        for part, (main, auxiliary) in zip(parts, probes, strict=True):
            part["scale"] = updated_scale(part["scale"], main.grad, auxiliary.grad, SMALL.eta)
        optimizer.step()
    return np.array(rows)


@pytest.mark.parametrize("arm", ["STE+SURGE", "Bi-Real+SURGE"])
@pytest.mark.parametrize("seed", [0, 2])
def test_one_seed_equals_the_unbatched_program(arm, seed):
    batched = log(arm)
    columns = [batched.x, batched.y, batched.loss]
    columns += [
        getattr(batched, key)[:, :, n] for key in ("scale", "norm_auxiliary") for n in (0, 1)
    ]
    ours = np.stack([column[:, seed] for column in columns], axis=1)
    np.testing.assert_allclose(ours, unbatched(arm, seed), rtol=1e-5, atol=1e-5)


def test_beale_equals_the_formula_written_out():
    x, y = 1.7, -0.4
    expected = (1.5 - x + x * y) ** 2 + (2.25 - x + x * y**2) ** 2 + (2.625 - x + x * y**3) ** 2
    assert beale(torch.tensor([x, y], dtype=torch.float64)).item() == pytest.approx(expected)


def test_seed_starts_and_goes_the_same_however_many_there_are():
    for arm in ("STE+SURGE", "STE+Noise"):
        few, many = log(arm, seeds=2), log(arm, seeds=3)
        np.testing.assert_allclose(few.loss, many.loss[:, :2], rtol=1e-5)


def test_binary_arms_start_at_the_same_point_and_loss():
    for arm in ("STE+SURGE", "Bi-Real", "Bi-Real+SURGE", "STE+Noise"):
        np.testing.assert_array_equal(log(arm).x[0], log("STE").x[0])
    np.testing.assert_array_equal(log("FP").norm_main[0], log("STE").norm_main[0])


def test_auxiliary_path_does_not_change_the_first_forward_but_the_second():
    np.testing.assert_array_equal(log("STE+SURGE").loss[0], log("STE").loss[0])
    assert (log("STE+SURGE").alpha_w[-1] != log("STE").alpha_w[-1]).any()


def test_outputs_are_alpha_times_whole_numbers_of_the_width_parity():
    found = log("STE")
    alpha = found.alpha_w[:, :, 1] * found.alpha_a[:, :, 1]
    counts = np.stack([found.x, found.y]) / alpha
    np.testing.assert_allclose(counts, counts.round(), atol=1e-3)
    assert (np.abs(counts.round()) % 2 == 1).all()


def test_first_scale_is_one_over_the_root_of_the_weights():
    first = log("STE+SURGE").scale[0]
    np.testing.assert_allclose(first, np.tile([68**-0.5, 34**-0.5], (3, 1)), rtol=1e-6)


def test_scale_adapts_each_seed_and_layer_on_its_own():
    late = log("STE+SURGE").scale[-1]
    assert len(np.unique(late)) == late.size


def test_noise_has_the_norm_of_the_auxiliary_gradient():
    x, layers = start(SMALL)
    layer = layers[0]
    x.requires_grad_()
    noise = torch.randn(3, 1, 4)
    gradients = {}
    for arm, drawn in (("STE", None), ("STE+SURGE", None), ("STE+Noise", noise)):
        x.grad = None
        layer.forward(x, ARMS[arm], drawn).square().sum().backward()
        gradients[arm] = x.grad.clone()
    surge, control = (gradients[arm] - gradients["STE"] for arm in ("STE+SURGE", "STE+Noise"))
    torch.testing.assert_close(control.norm(dim=(1, 2)), surge.norm(dim=(1, 2)))
    cosine = torch.cosine_similarity(control[:, 0], noise[:, 0])
    torch.testing.assert_close(cosine, torch.ones(3))


def test_scale_that_fell_to_zero_recovers():
    x, layers = start(SMALL)
    layer = layers[1]
    x = torch.full((3, 1, 17), 9.0, requires_grad=True)  # all clipped: g_b is zero
    layer.forward(x, ARMS["STE+SURGE"], None).sum().backward()
    layer.renew_scale(0.01)
    assert (layer.scale == 0).all()
    x = torch.zeros(3, 1, 17, requires_grad=True)
    layer.forward(x, ARMS["STE+SURGE"], None).sum().backward()
    layer.renew_scale(0.01)
    assert (layer.scale > 0).all()


def test_log_has_one_row_per_step_and_nan_where_an_arm_has_nothing():
    for arm in ARMS:
        found = log(arm)
        assert found.loss.shape == found.x.shape == found.distance.shape == (40, 3)
        for key in LAYER_SERIES:
            assert getattr(found, key).shape == (40, 3, 2)
    assert np.isnan(log("FP").alpha_w).all() and np.isnan(log("STE").scale).all()
    assert np.isfinite(log("STE+Noise").norm_auxiliary).all()


def test_distance_is_to_the_optimum():
    found = log("FP")
    np.testing.assert_allclose(
        found.distance, np.hypot(found.x - 3.0, found.y - 0.5), rtol=1e-5, atol=1e-6
    )


def test_full_precision_reaches_the_optimum():
    options = ToyOptions(seeds=2, steps=300, inputs=8, hidden=33, lr=0.01)
    assert run_arm(ARMS["FP"], options).loss[-1].max() < 1e-3


def test_fixed_input_stays_and_surge_still_reaches_the_hidden_weights():
    fixed = ToyOptions(seeds=2, steps=40, inputs=4, hidden=17, lr=0.05, fixed_input=True)
    found, plain = (run_arm(ARMS[arm], fixed) for arm in ("STE+SURGE", "STE"))
    assert np.isfinite(found.scale).all()
    assert (found.norm_main[-1, :, 0] != plain.norm_main[-1, :, 0]).any()
    moving = run_arm(ARMS["STE"], replace(fixed, fixed_input=False))
    assert (moving.norm_main[-1] != plain.norm_main[-1]).any()


def test_study_runs_every_arm_tells_of_it_and_leaves_the_threads_alone():
    threads = torch.get_num_threads()
    heard = []
    logs = toy.run_study(SMALL, on_arm=lambda name, found: heard.append((name, found.loss.shape)))
    assert list(logs) == [name for name, _ in heard] == list(ARMS)
    assert torch.get_num_threads() == threads


@pytest.mark.parametrize(
    ("field", "value"),
    [("seeds", 1), ("steps", 39), ("inputs", 0), ("hidden", 0), ("eta", 0.0), ("lr", float("inf"))],
)
def test_bad_option_is_refused_by_its_flag(field, value):
    with pytest.raises(ConfigError, match=f"--{field}"):
        ToyOptions(**{field: value})
