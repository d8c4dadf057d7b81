"""IR-Net against methods.md B4, in NumPy."""

import math

import numpy as np
import pytest
import torch

from surge.errors import ConfigError
from surge.layers import BinaryConv2d, BinaryEmbedding, BinaryLinear
from tests.methods.reference import (
    CASES,
    check_packed,
    close,
    compute,
    make,
    per_filter_mean,
    run,
    sign,
    sign_input,
)


def schedule(epoch, epochs, t_min=0.1, t_max=10.0):
    low, high = math.log10(t_min), math.log10(t_max)
    t = 10 ** (low + epoch / epochs * (high - low))
    return max(1 / t, 1), t


def ede(k, t):
    return lambda u: k * t * (1 - np.tanh(t * u) ** 2)


def weight_rule(k, t):
    def rule(w):
        n = w[0].size
        centred = w - per_filter_mean(w)
        std = np.sqrt(per_filter_mean(centred**2) * n / (n - 1))
        v = centred / std
        s = 2.0 ** np.round(np.log2(per_filter_mean(np.abs(v))))

        def back(g):
            g = g * s * ede(k, t)(v)
            return (g - per_filter_mean(g) - v * n * per_filter_mean(g * v) / (n - 1)) / std

        return s * sign(v), back

    return rule


@pytest.mark.parametrize("epoch", [0, 37, 99])
@pytest.mark.parametrize("case", CASES)
def test_irnet_equals_numpy(case, epoch):
    layer, x = make(case, "irnet")
    layer.method.on_epoch(epoch, 100)
    y, input_grad, grad = run(layer, x)
    k, t = schedule(epoch, 100)
    expected = compute(
        layer,
        x.numpy(),
        grad.numpy(),
        weight_rule=weight_rule(k, t),
        input_rule=sign_input(ede(k, t)),
    )
    close(y, expected.output)
    close(layer.weight.grad, expected.weight_grad)
    close(input_grad, expected.input_grad)


@pytest.mark.parametrize(
    ("epoch", "k", "t"),
    [(0, 10, 0.1), (100, 10**0.5, 10**-0.5), (200, 1, 1), (300, 1, 10**0.5), (399, 1, 9.8855309)],
)
def test_irnet_schedule_at_named_epochs(epoch, k, t):
    layer = BinaryLinear(4, 2, method="irnet")
    layer.method.on_epoch(epoch, 400)
    assert layer.method.k.item() == pytest.approx(k, rel=1e-6)
    assert layer.method.t.item() == pytest.approx(t, rel=1e-6)


def test_irnet_schedule_of_the_resnet20_script():
    layer = BinaryLinear(4, 2, method="irnet", method_options={"t_min": 1e-3})
    assert layer.method.k.item() == pytest.approx(1000)
    layer.method.on_epoch(200, 400)
    assert layer.method.t.item() == pytest.approx(0.1)


def test_irnet_starts_at_epoch_zero_and_moves_in_place():
    layer = BinaryLinear(4, 2, method="irnet")
    state, (k, t) = layer.method.state_dict(), (layer.method.k, layer.method.t)
    layer.method.on_epoch(0, 10)
    assert torch.equal(state["k"], torch.tensor(10.0)) and torch.equal(
        state["t"], torch.tensor(0.1)
    )
    layer.method.on_epoch(9, 10)
    assert k is layer.method.k and t is layer.method.t and t > 1


def test_irnet_schedule_is_saved_and_dropped_at_export():
    layer = BinaryLinear(4, 2, method="irnet")
    assert set(layer.method.state_dict()) == {"k", "t"} == set(layer.method.dropped)


def test_irnet_surrogate_is_never_zero():
    layer = BinaryLinear(4, 2, method="irnet")
    zero = layer.method.surrogate_is_zero(torch.tensor([-100.0, -1.0, 0.0, 1.0, 100.0]))
    assert zero.dtype == torch.bool and not zero.any()


@pytest.mark.parametrize("case", CASES)
def test_irnet_packed_weight_reproduces_the_layer(case):
    layer, values, scale = check_packed(case, "irnet")
    centred = layer.weight - layer.weight.flatten(1).mean(1).view(-1, *(1,) * (values.dim() - 1))
    assert torch.equal(values, torch.from_numpy(sign(centred.detach().numpy())).float())
    assert scale.log2().frac().eq(0).all()


def test_irnet_scale_is_a_power_of_two_for_every_filter():
    # A filter with one large weight has a small mean magnitude after standardisation.
    layer = BinaryLinear(64, 2, bias=False, method="irnet")
    with torch.no_grad():
        layer.weight[0] = torch.where(torch.arange(64) == 0, 1.0, 0.0)
    _, scale = layer.packed_weight()
    assert scale.tolist() == [0.25, 1.0]


def test_irnet_constant_filter_gives_zeros_not_nan():
    layer = BinaryConv2d(2, 2, 3, bias=False, method="irnet")
    with torch.no_grad():
        layer.weight[0] = 0.5
    x = torch.randn(1, 2, 5, 5, requires_grad=True)
    y = layer(x)
    y.sum().backward()
    assert y[:, 0].eq(0).all() and y[:, 1].ne(0).any()
    assert layer.weight.grad[0].eq(0).all() and layer.weight.grad.isfinite().all()
    assert x.grad.isfinite().all()


def test_irnet_embedding_keeps_its_padding_row_at_zero():
    layer = BinaryEmbedding(4, 6, padding_idx=2, method="irnet")
    assert layer(torch.tensor([2])).eq(0).all()


@pytest.mark.parametrize(
    "options",
    [{"t_min": 0.0}, {"t_min": 2.0, "t_max": 1.0}, {"t_max": math.inf}, {"t_min": math.nan}],
)
def test_irnet_rejects_a_bad_schedule(options):
    with pytest.raises(ConfigError, match="need 0 < t_min <= t_max"):
        BinaryLinear(4, 2, method="irnet", method_options=options)


def test_irnet_rejects_filters_of_one_weight():
    with pytest.raises(ConfigError, match="at least 2 weights"):
        BinaryLinear(1, 2, method="irnet")
