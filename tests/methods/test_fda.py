"""FDA-BNN against methods.md B16, in NumPy."""

import math

import numpy as np
import pytest
import torch

from surge.layers import BinaryConv2d, BinaryEmbedding, BinaryLinear
from surge.methods.fda import bottleneck, sign_fourier
from tests.methods.reference import (
    CASES,
    check,
    check_packed,
    close,
    compute,
    make,
    per_filter_mean,
    run,
    sign,
    sign_input,
)


def schedule(epoch, epochs):
    return 9 + int(9 * epoch / epochs), 0.05 * (1 + math.cos(math.pi * (epoch + 1) / epochs))


def series(n):
    """The slope of sign's Fourier series, term by term."""

    def slope(u):
        total = sum(np.cos((2 * i + 1) * 0.1 * u) for i in range(n + 1))
        return 4 * 0.1 / math.pi * total * (np.abs(u) <= 1)

    return slope


def weight_rule(n, *, layer_scale=False):
    def rule(w):
        alpha = np.abs(w).mean() if layer_scale else per_filter_mean(np.abs(w))
        return alpha * sign(w), lambda g: g * alpha * series(n)(w)

    return rule


class Noise:
    """A noise module in NumPy: rows in, rows out, and the gradients of its two matrices."""

    def __init__(self, reduce, expand):
        self.reduce, self.expand = reduce.detach().numpy(), expand.detach().numpy()
        self.reduce_grad = self.expand_grad = None

    def __call__(self, u):
        hidden = np.maximum(u @ self.reduce.T, 0)

        def back(g):
            self.expand_grad = g.T @ hidden
            to_hidden = g @ self.expand * (hidden > 0)
            self.reduce_grad = to_hidden.T @ u
            return to_hidden @ self.reduce + 0.1 * np.cos(u) * g

        return hidden @ self.expand.T + 0.1 * np.sin(u), back


def noisy_rules(layer, n, s):
    method = layer.method
    weights = Noise(method.weight_reduce, method.weight_expand)
    inputs = Noise(method.input_reduce, method.input_expand)

    def of_weight(w):
        alpha = per_filter_mean(np.abs(w))
        noise, back = weights(w.reshape(len(w), -1))
        value = alpha * (sign(w) + s * noise.reshape(w.shape))
        return (
            value,
            lambda g: (
                g * alpha * series(n)(w)
                + s * back((g * alpha).reshape(len(w), -1)).reshape(w.shape)
            ),
        )

    def of_input(x):
        last = np.moveaxis(x, 1, -1)
        noise, back = inputs(last.reshape(-1, last.shape[-1]))

        def pull(g):
            rows = np.moveaxis(g, 1, -1).reshape(-1, last.shape[-1])
            return g * series(n)(x) + s * np.moveaxis(back(rows).reshape(last.shape), -1, 1)

        return sign(x) + s * np.moveaxis(noise.reshape(last.shape), -1, 1), pull

    return of_weight, of_input, weights, inputs


@pytest.mark.parametrize("case", CASES)
def test_fda_equals_numpy_without_noise(case):
    for options in ({"noise": False}, {}):  # until an epoch is announced there is no noise either
        check(case, "fda", options, weight_rule=weight_rule(9), input_rule=sign_input(series(9)))


@pytest.mark.parametrize("epoch", [0, 37, 98])
@pytest.mark.parametrize("case", CASES)
def test_fda_equals_numpy_with_noise(case, epoch):
    layer, x = make(case, "fda")
    layer.method.on_epoch(epoch, 100)
    n, s = schedule(epoch, 100)
    of_weight, of_input, weights, inputs = noisy_rules(layer, n, s)
    y, input_grad, grad = run(layer, x)
    expected = compute(layer, x.numpy(), grad.numpy(), weight_rule=of_weight, input_rule=of_input)
    close(y, expected.output)
    close(layer.weight.grad, expected.weight_grad)
    close(input_grad, expected.input_grad)
    for name, noise in (("weight", weights), ("input", inputs)):
        close(getattr(layer.method, f"{name}_reduce").grad, s * noise.reduce_grad)
        close(getattr(layer.method, f"{name}_expand").grad, s * noise.expand_grad)


def test_fda_layer_scale_equals_numpy():
    for case in ("conv", "linear"):
        check(
            case,
            "fda",
            {"noise": False, "layer_scale": True},
            weight_rule=weight_rule(9, layer_scale=True),
            input_rule=sign_input(series(9)),
        )
    _, _, scale = check_packed("conv", "fda", {"layer_scale": True})
    assert scale.unique().numel() == 1


@pytest.mark.parametrize(
    ("epoch", "terms", "noise"),
    [(0, 9, 0.09997533), (11, 9, 0.09648882), (12, 10, 0.09588773), (49, 13, 0.05), (99, 17, 0.0)],
)
def test_fda_schedule_at_named_epochs(epoch, terms, noise):
    layer = BinaryLinear(4, 2, method="fda")
    held = layer.method.terms
    assert held == 9 and layer.method.noise_weight == 0
    layer.method.on_epoch(epoch, 100)
    assert held is layer.method.terms and held == terms
    assert layer.method.noise_weight.item() == pytest.approx(noise, abs=1e-8)


def test_fda_slope_is_exact_around_zero_and_ends_at_one():
    x = torch.tensor([0.0, -0.0, 1e-40, 1e-8, 1e-5, 1e-3, 1.0, 1.001, math.inf, -math.inf])
    x.requires_grad_()
    sign_fourier(x, torch.tensor(9.0)).sum().backward()
    close(x.grad, series(9)(x.detach().double().numpy().clip(-2, 2)), tolerance=1e-6)
    layer = BinaryLinear(4, 2, method="fda")
    assert torch.equal(layer.method.surrogate_is_zero(x.detach()), x.grad == 0)


def test_fda_late_slope_is_negative_near_the_edge():
    x = torch.tensor([0.95], requires_grad=True)
    sign_fourier(x, torch.tensor(17.0)).sum().backward()
    assert x.grad < 0  # as the series has it: no clamp


def test_fda_slope_in_half_precision_is_that_of_float():
    x = torch.linspace(-1, 1, 21).bfloat16()
    slopes = []
    for values in (x, x.float()):
        leaf = values.clone().requires_grad_()
        sign_fourier(leaf, torch.tensor(13.0)).sum().backward()
        slopes.append(leaf.grad.float())
    torch.testing.assert_close(slopes[0], slopes[1], rtol=4e-3, atol=1e-3)


def test_fda_noise_is_for_training_only_and_squeezes_to_a_64th():
    layer, x = make("conv", "fda")
    layer.method.on_epoch(0, 100)
    assert not torch.equal(layer.method.binarize(x).abs(), torch.ones_like(x))
    alpha = layer.method.magnitude(layer.weight).expand_as(layer.weight)
    assert not torch.equal(layer.method.binarize_weight(layer.weight).abs(), alpha)
    layer.eval()
    assert torch.equal(layer.method.binarize(x).abs(), torch.ones_like(x))
    assert torch.equal(layer.method.binarize_weight(layer.weight).abs(), alpha)
    wide = BinaryConv2d(128, 4, 3, method="fda").method
    assert wide.weight_reduce.shape == (18, 1152) and wide.input_reduce.shape == (2, 128)


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("case", CASES)
def test_fda_packed_weight_reproduces_the_layer(case, training):
    def prepare(layer):
        layer.method.on_epoch(0, 10)
        layer.train(training)

    layer, values, _ = check_packed(case, "fda", prepare=prepare)
    packed = layer.train().packed_weight()  # the noise stays out
    assert torch.equal(packed[0], values)


def test_fda_export_drops_all_of_its_state():
    layer = BinaryLinear(4, 2, method="fda")
    assert set(layer.method.state_dict()) == set(layer.method.dropped)


def test_fda_embedding_has_no_input_noise():
    layer = BinaryEmbedding(5, 4, method="fda")
    assert layer.method.input_reduce is None and layer.method.weight_reduce is not None


def test_fda_operator_passes_opcheck():
    torch.library.opcheck(sign_fourier, (torch.randn(3, 2, requires_grad=True), torch.tensor(9.0)))


@pytest.mark.parametrize(("features", "narrow"), [(24, 1), (64, 1), (640, 10)])
def test_noise_modules_are_drawn_as_linear_layers_of_a_64th(features, narrow):
    for drawn, shape in zip(
        bottleneck(features, torch.empty(0)),
        [(narrow, features), (features, narrow)],
        strict=True,
    ):
        bound = shape[1] ** -0.5
        assert drawn.shape == shape
        assert -bound <= drawn.min() < -0.6 * bound and 0.6 * bound < drawn.max() <= bound
