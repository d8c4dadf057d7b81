"""The scale: its first value, its update, and everything that must not move it."""

import math
import warnings

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import surge
from surge.compensation.scaler import (
    LARGEST,
    cosine_decay,
    followed_scale,
    initial_scale,
    updated_scale,
)
from surge.errors import SurgeWarning
from tests.nets import (
    CASES,
    all_methods,
    assert_near,
    cnn,
    every_kind,
    images,
    injected,
    loss_of,
    pair,
    run,
)

ETA = 0.01


def update(main, auxiliary, *, scale=0.5, eta=ETA, **options):
    """The scale of one layer after norms ``main`` and ``auxiliary``."""
    values = [torch.tensor([float(v)]) for v in (scale, main**2, auxiliary**2)]
    return float(updated_scale(*values, eta, **options))


@pytest.mark.parametrize(
    ("growth", "reading", "expected"),
    [(4.0, "unscaled", 0.125), (4.0, "scaled", 0.25), (0.25, "unscaled", 2.0)]
    + [(bad, "unscaled", 0.5) for bad in (0.0, math.inf, math.nan)]
    + [(1e-9, "unscaled", LARGEST)],
)
def test_scale_follows_the_norm_of_g_a(growth, reading, expected):
    """Not where an overflow would poison it, and not beyond its limit."""
    found = followed_scale(torch.tensor(0.5), torch.tensor(growth), reading=reading)
    assert float(found) == pytest.approx(expected)


@pytest.mark.parametrize(
    ("layer", "expected"),
    [
        pytest.param(surge.BinaryConv2d(16, 16, 3), 0.0208, id="16-16-3x3"),
        pytest.param(surge.BinaryConv2d(64, 64, 3), 0.0052, id="64-64-3x3"),
        pytest.param(surge.BinaryLinear(768, 768), 1.3e-3, id="768-768"),
        pytest.param(surge.BinaryLinear(768, 3072), 6.5e-4, id="768-3072"),
    ],
)
def test_first_scale_is_one_over_root_of_weights(layer, expected):
    scale = surge.compensate_(layer).scales()[""]
    assert scale == pytest.approx(1 / math.sqrt(layer.weight.numel()))
    assert scale == pytest.approx(expected, rel=0.02)


def test_first_scale_of_a_pointwise_path_counts_its_own_weights():
    layer = surge.BinaryConv2d(4, 6, 3, padding=1)
    assert surge.compensate_(layer, auxiliary="pointwise").scales()[""] == pytest.approx(24**-0.5)


def test_first_scale_of_nothing_is_finite():
    assert initial_scale(torch.empty(0)) == 1.0


def test_update_equals_hand_computation():
    layer = surge.BinaryLinear(2, 1, bias=False)
    with torch.no_grad():
        layer.weight.copy_(torch.tensor([[0.3, -0.2]]))
    compensation = surge.compensate_(layer, eta=0.1)
    with torch.no_grad():
        layer.auxiliary.weight.copy_(torch.tensor([[3.0, 4.0]]))
    x = torch.tensor([[0.5, -0.5], [2.0, 0.1]], requires_grad=True)
    layer(x).backward(torch.tensor([[1.0], [2.0]]))
    compensation.step()
    # g_b: rows (1, -1) and (0, -2), the zero being clipped; g_a: rows (3, 4) and (6, 8).
    expected = 0.1 * math.sqrt(1 + 1 + 4) / math.sqrt(9 + 16 + 36 + 64)
    assert compensation.scales()[""] == pytest.approx(expected, rel=1e-6)


@every_kind
def test_injection_is_eta_of_the_main_gradient_without_oscillation(method, case):
    plain, compensated, compensation = pair(case, method, eta=ETA, aux_input="layer_input")
    x = case.batch()
    shares = []
    for _ in range(6):
        main, added, _ = injected(plain, compensated, x)
        shares.append(float(added.norm() / main.norm()))
        compensation.step()
    # The first step still has the initial scale; float32 differences limit the precision.
    assert shares[1:] == pytest.approx([ETA] * 5, rel=1e-3)


@all_methods
def test_committed_scale_stays_put_on_a_repeated_batch(method):
    case = CASES["conv2d"]
    _, compensated, compensation = pair(case, method)
    scales = []
    for _ in range(5):
        run(compensated, case.batch())
        compensation.step()
        scales.append(compensation.scales()[""])
    assert scales == [scales[0]] * 5


@all_methods
def test_share_reported_between_backward_and_step_is_eta(method):
    net = cnn(method)
    compensation = surge.compensate_(net, eta=ETA)
    # A scale moves the gradients of the layers below, so three layers settle one after another.
    for _ in range(4):
        compensation.step()
        loss_of(net, images()).backward()
    assert float(compensation.injected()) == pytest.approx(ETA, rel=1e-5)


def test_share_without_auxiliary_weights_is_zero():
    net = cnn()
    compensation = surge.compensate_(net, auxiliary="leaky_tail")
    loss_of(net, images()).backward()
    assert float(compensation.injected()) == 0.0


def test_epsilon_guards_a_tiny_auxiliary_norm():
    assert update(1e-6, 1e-8) == pytest.approx(ETA * 1e-6 / 2e-8, rel=1e-5)


def test_zero_auxiliary_gradient_keeps_the_scale():
    assert update(1.0, 0.0, scale=0.125) == 0.125


@pytest.mark.parametrize("bad", [math.inf, math.nan])
@pytest.mark.parametrize("place", ["main", "auxiliary"])
def test_norm_that_is_not_finite_keeps_the_scale(place, bad):
    norms = {"main": 1.0, "auxiliary": 1.0, place: bad}
    assert update(**norms, scale=0.125) == 0.125


def test_scale_is_capped():
    assert update(1e12, 1e-3) == LARGEST == 1e4


def test_layers_are_updated_one_by_one():
    scales = updated_scale(
        torch.tensor([0.1, 0.2, 0.3]),
        torch.tensor([4.0, math.nan, 9.0]),
        torch.tensor([1.0, 1.0, 0.0]),
        0.5,
    )
    assert_near(scales, torch.tensor([1.0, 0.2, 0.3]))


def test_scaled_reading_sits_at_its_fixed_point():
    scale = update(3.0, 2.0, reading="scaled")
    literal = ETA * 3.0 / (scale * 2.0)
    assert scale == pytest.approx(math.sqrt(ETA * 1.5)) == pytest.approx(literal)


def test_scaled_reading_gives_the_larger_dose():
    case = CASES["linear"]
    plain, compensated, compensation = pair(case, eta=ETA, reading="scaled")
    run(compensated, case.batch())
    compensation.step()
    main, added, _ = injected(plain, compensated, case.batch())
    g_a = added.norm() / compensation.scales()[""]
    expected = math.sqrt(ETA * main.norm() / g_a) * g_a
    assert_near(added.norm(), expected, rtol=1e-3)


norms = st.just(0.0) | st.floats(min_value=2**-40, max_value=2**50, width=32)


@given(
    main=st.lists(norms, min_size=1, max_size=4),
    auxiliary=norms,
    eta=st.floats(min_value=2**-20, max_value=8, width=32),
    scaled=st.booleans(),
)
def test_update_equals_numpy(main, auxiliary, eta, scaled):
    ratio = eta * np.array(main) / (auxiliary + 1e-8)
    expected = np.minimum(np.sqrt(ratio) if scaled else ratio, 1e4)
    if auxiliary == 0:
        expected = np.full(len(main), 0.5)
    actual = updated_scale(
        torch.full((len(main),), 0.5),
        torch.tensor(main) ** 2,
        torch.full((len(main),), auxiliary) ** 2,
        eta,
        reading="scaled" if scaled else "unscaled",
    )
    np.testing.assert_allclose(actual.numpy(), expected, rtol=1e-5)


@pytest.mark.parametrize("value", [0.3, "initial"])
def test_fixed_scale_never_changes(value):
    net = cnn()
    compensation = surge.compensate_(net, fixed_scale=value)
    before = compensation.scales()
    loss_of(net, images()).backward()
    compensation.step()
    assert compensation.scales() == before


def test_fixed_scale_has_the_given_value():
    assert set(surge.compensate_(cnn(), fixed_scale=0.25).scales().values()) == {0.25}


def test_fixed_initial_scale_is_the_first_adaptive_one():
    fixed = surge.compensate_(cnn(), fixed_scale="initial")
    assert fixed.scales() == surge.compensate_(cnn()).scales()


@pytest.mark.parametrize(("epoch", "factor"), [(0, 1.0), (5, 0.5), (10, 0.0), (11, 0.0)])
def test_cosine_decay_shrinks_the_dose(epoch, factor):
    case = CASES["linear"]
    plain, compensated, compensation = pair(case, eta=0.1, decay="cosine")
    surge.on_epoch(compensated, epoch, 10)
    run(compensated, case.batch())
    compensation.step()
    main, added, _ = injected(plain, compensated, case.batch())
    assert float(added.norm() / main.norm()) == pytest.approx(0.1 * factor, rel=1e-4, abs=1e-7)


def test_cosine_decay_of_the_leaky_tail_shrinks_rho():
    net = cnn()
    compensation = surge.compensate_(net, auxiliary="leaky_tail", eta=0.2, decay="cosine")
    surge.on_epoch(net, 5, 10)
    assert list(compensation.scales().values()) == pytest.approx([0.1] * 3)


def test_dose_is_constant_without_decay():
    net = cnn()
    surge.compensate_(net, eta=0.2)
    surge.on_epoch(net, 5, 10)
    assert float(net[2].auxiliary.eta) == pytest.approx(0.2)


def test_cosine_runs_from_one_to_zero():
    assert [cosine_decay(e, 4) for e in (0, 2, 4)] == pytest.approx([1, 0.5, 0])


@pytest.mark.parametrize("bad", [math.inf, math.nan])
def test_gradient_that_is_not_finite_warns_and_names_the_layer(bad):
    net = cnn()
    compensation = surge.compensate_(net)
    before = compensation.scales()
    net[9].auxiliary.probes["main"].grad = torch.tensor(bad)
    with pytest.warns(SurgeWarning, match=r'"9" \(1 layers in all\) were not finite') as caught:
        compensation.step()
    assert len(caught) == 1
    assert compensation.scales() == before


def test_finite_gradients_do_not_warn():
    net = cnn()
    compensation = surge.compensate_(net)
    loss_of(net, images()).backward()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        compensation.step()


def test_squares_are_collected_in_float32_from_any_dtype():
    for dtype in (torch.float64, torch.bfloat16, torch.float16):
        case = CASES["linear"]
        _, compensated, _ = pair(case)
        compensated.to(dtype)
        run(compensated, case.batch().to(dtype))
        assert compensated.auxiliary.squares("main").dtype == torch.float32
        assert compensated.auxiliary.squares("main") > 0


def test_norm_beyond_half_precision_is_collected():
    case = CASES["linear"]
    _, compensated, _ = pair(case)
    compensated.half()
    gradient = torch.zeros(5, 6, dtype=torch.float16)
    gradient[:, 0] = 3e4
    run(compensated, case.batch().half(), gradient)
    entries = int((case.batch().abs() <= 1).sum())
    expected = torch.tensor(3e4**2 * entries)
    assert expected.sqrt() > torch.finfo(torch.float16).max
    assert_near(compensated.auxiliary.squares("main"), expected, rtol=1e-3)


def test_scale_below_half_precision_is_not_lost():
    case = CASES["linear"]
    _, compensated, _ = pair(case, fixed_scale=1e-9)
    compensated.half()
    x = case.batch().half().requires_grad_()
    compensated(x).backward(torch.full((5, 6), 1e3, dtype=torch.float16))
    assert compensated.auxiliary.weight.grad.abs().max() > 0
