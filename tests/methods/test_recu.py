"""ReCU against methods.md B2, in NumPy."""

import math

import numpy as np
import pytest
import torch

from surge.errors import ConfigError
from surge.layers import BinaryConv2d, BinaryLinear
from tests.methods.reference import (
    CASES,
    check_packed,
    close,
    compute,
    make,
    per_filter_mean,
    run,
    sign,
    triangle,
)

EPS = 1e-5


def tau_of(epoch, epochs, low=0.85, high=0.99):
    a = (high - low) / (math.exp(1) - 1)
    return a * math.exp(epoch / epochs) + (low - a)


def weight_rule(tau):
    def rule(w):
        n, gain = w[0].size, 2 * math.sqrt(2)
        centred = w - per_filter_mean(w)
        std = np.sqrt(per_filter_mean(centred**2) * n / (n - 1) + EPS)
        u = centred / std
        w1 = gain * u
        bound = -np.abs(w1).mean() * math.log(2 - 2 * tau) if tau < 1 else math.inf

        def back(g):
            g = g * (np.abs(w1) <= bound)
            return gain / std * (g - per_filter_mean(g) - u * n * per_filter_mean(g * u) / (n - 1))

        return sign(np.clip(w1, -bound, bound)), back

    return rule


def normalise(x):
    """Return z = x / std per sample and the map from dL/dz to dL/dx."""
    axes, n = tuple(range(1, x.ndim)), x[0].size
    centred = x - x.mean(axis=axes, keepdims=True)
    std = np.sqrt((centred**2).sum(axis=axes, keepdims=True) / (n - 1) + EPS)

    def back(g):
        through_std = (g * x).sum(axis=axes, keepdims=True) / std**2
        return g / std - through_std * centred / ((n - 1) * std)

    return x / std, back


def input_rule(x):
    z, back = normalise(x)
    return sign(z), lambda g: back(g * triangle(z))


def expect(layer, x, grad, tau, rule):
    alpha = layer.method.alpha.detach().numpy()
    factor = alpha.reshape(-1, 1, 1) if x.ndim == 4 else alpha
    return compute(
        layer, x.numpy(), grad.numpy(), weight_rule=weight_rule(tau), input_rule=rule, factor=factor
    )


@pytest.mark.parametrize("epoch", [None, 0, 300, 599])
@pytest.mark.parametrize("case", CASES)
def test_recu_equals_numpy(case, epoch):
    layer, x = make(case, "recu")
    if epoch is not None:
        layer.method.on_epoch(epoch, 600)
    tau = 1.0 if epoch is None else tau_of(epoch, 600)
    y, input_grad, grad = run(layer, x)
    expected = expect(layer, x, grad, tau, input_rule)
    close(y, expected.output)
    close(layer.weight.grad, expected.weight_grad)
    close(input_grad, expected.input_grad)
    others = (0, 2, 3) if x.ndim == 4 else (0,)
    close(layer.method.alpha.grad, (grad.numpy() * expected.product).sum(axis=others))


def test_recu_clamps_some_weights_when_tau_is_small():
    layer, _ = make("conv", "recu")
    w = layer.weight.detach().numpy()
    ones = np.ones_like(w)
    early, late = weight_rule(0.85)(w)[1](ones), weight_rule(1.0)(w)[1](ones)
    assert np.abs(early - late).max() > 1e-3  # so the comparison above sees the clamp


def test_recu_eval_does_not_normalise_and_gives_the_same_bits():
    layer, x = make("conv", "recu")
    trained = layer(x)
    layer.eval()
    assert layer.method.prepare_input(x) is x
    assert torch.equal(layer(x), trained)


def test_recu_eval_gradient_has_no_normalisation():
    layer, x = make("conv", "recu")
    layer.eval()
    _, input_grad, grad = run(layer, x)
    rule = lambda x: (sign(x), lambda g: g * triangle(x))  # noqa: E731
    close(input_grad, expect(layer, x, grad, 1.0, rule).input_grad)


def test_recu_mask_is_taken_after_the_division():
    layer, x = make("linear", "recu")
    z = layer.method.prepare_input(10 * x)
    expected = np.abs(normalise(10 * x.numpy())[0]) >= 1
    assert torch.equal(layer.method.surrogate_is_zero(z), torch.from_numpy(expected))


def test_recu_sequences_are_normalised_per_sample():
    layer = BinaryLinear(6, 5, bias=False, method="recu", dtype=torch.double).double()
    x = torch.randn(2, 3, 6, dtype=torch.double)
    y, input_grad, grad = run(layer, x)
    expected = expect(layer, x, grad, 1.0, input_rule)
    close(y, expected.output)
    close(input_grad, expected.input_grad)


@pytest.mark.parametrize(("epoch", "tau"), [(0, 0.85), (100, 0.8648), (300, 0.9029), (599, 0.9896)])
def test_recu_schedule_at_named_epochs(epoch, tau):
    layer = BinaryLinear(4, 2, method="recu")
    assert layer.method.tau == 1
    layer.method.on_epoch(epoch, 600)
    assert layer.method.tau.item() == pytest.approx(tau, abs=5e-5)


def test_recu_schedule_moves_in_place_between_its_options():
    layer = BinaryLinear(4, 2, method="recu", method_options={"tau_min": 0.9, "tau_max": 0.95})
    tau = layer.method.tau
    layer.method.on_epoch(0, 10)
    assert tau is layer.method.tau and tau.item() == pytest.approx(0.9)
    layer.method.on_epoch(10, 10)
    assert tau.item() == pytest.approx(0.95)


def test_recu_alpha_is_drawn_from_the_unit_interval():
    alpha = BinaryConv2d(2, 500, 3, method="recu").method.alpha
    assert alpha.shape == (500,) and alpha.requires_grad
    assert alpha.min() >= 0 and alpha.max() < 1
    assert alpha.mean().item() == pytest.approx(0.5, abs=0.06)


@pytest.mark.parametrize("case", CASES)
def test_recu_packed_weight_reproduces_the_layer(case):
    def prepare(layer):
        with torch.no_grad():
            layer.method.alpha[0] = -0.5  # alpha is free to be negative
        layer.method.on_epoch(0, 10)

    layer, values, scale = check_packed(case, "recu", prepare=prepare)
    mean = layer.weight.flatten(1).mean(1).view(-1, *(1,) * (values.dim() - 1))
    assert torch.equal(values, torch.where(layer.weight - mean >= 0, 1.0, -1.0))
    assert torch.equal(scale, layer.method.alpha)


def test_recu_export_drops_tau():
    layer = BinaryLinear(4, 2, method="recu")
    assert set(layer.method.state_dict()) - set(layer.method.dropped) == {"alpha"}


@pytest.mark.parametrize("options", [{"tau_min": 0.4}, {"tau_max": 1.0}, {"tau_min": 0.995}])
def test_recu_rejects_a_bad_schedule(options):
    with pytest.raises(ConfigError, match="tau_min=.*tau_max="):
        BinaryLinear(4, 2, method="recu", method_options=options)


def test_recu_rejects_filters_of_one_weight():
    with pytest.raises(ConfigError, match="at least 2 weights"):
        BinaryConv2d(4, 4, 1, groups=4, method="recu")
