"""IDa-Det's layer against methods.md B18, in NumPy."""

import numpy as np
import pytest
import torch

import surge
from surge.errors import ConfigError
from surge.layers import BinaryEmbedding, BinaryLinear
from tests.methods.reference import CASES, check_packed, close, compute, make, sign, triangle

UNIT, PENALTY = 0.02, 1e-4


def wide(vector, w):
    return vector.reshape(-1, *(1,) * (w.ndim - 1))


def per_filter_sum(w):
    return w.reshape(len(w), -1).sum(axis=1)


class Weights:
    """The authors' backward with the penalty inside it; ``signed`` multiplies by sign(scale)."""

    def __init__(self, layer, *, penalty, signed):
        self.scale = layer.method.scale.detach().numpy()
        self.penalty, self.signed = penalty, signed
        self.scale_grad = None

    def __call__(self, w):
        a = wide(np.abs(self.scale), w)
        missing = w - UNIT * sign(w) * a

        def back(g):
            to_a = per_filter_sum(g * w) - self.penalty * per_filter_sum(missing * UNIT * sign(w))
            self.scale_grad = to_a * np.sign(self.scale) if self.signed else to_a
            return g * a + self.penalty * missing

        return UNIT * sign(w) * a, back


def input_rule(x):
    return sign(x), lambda g: g * triangle(x)


@pytest.mark.parametrize("forgets", [False, True])
@pytest.mark.parametrize("penalised", [False, True])
@pytest.mark.parametrize("case", CASES)
def test_ida_equals_numpy(case, penalised, forgets):
    layer, x = make(case, "ida", {"forgets_sign": forgets})
    if penalised:
        layer.method.on_epoch(0, 10)
    rule = Weights(layer, penalty=PENALTY * penalised, signed=not forgets)
    leaf = x.clone().requires_grad_()
    y = layer(leaf)
    grad = torch.randn(y.shape, dtype=y.dtype, generator=torch.Generator().manual_seed(1))
    ((y * grad).sum() + layer.method.extra_loss(layer.weight)).backward()
    expected = compute(layer, x.numpy(), grad.numpy(), weight_rule=rule, input_rule=input_rule)
    close(y, expected.output)
    close(layer.weight.grad, expected.weight_grad)
    close(leaf.grad, expected.input_grad)
    close(layer.method.scale.grad, rule.scale_grad)
    dims = tuple(i for i in range(expected.input_grad.ndim) if i != 1)
    close(layer.method.shift.grad, expected.input_grad.sum(axis=dims))


def test_ida_quirk_moves_negative_scales_the_wrong_way():
    """A scale that should grow in magnitude does so only where its sign is not forgotten."""
    grown = {}
    for forgets in (False, True):
        layer = BinaryLinear(4, 2, method="ida", method_options={"forgets_sign": forgets})
        with torch.no_grad():
            layer.weight.fill_(0.5)
            layer.method.scale.copy_(torch.tensor([1.0, -1.0]))
        (-layer(torch.ones(1, 4)).sum()).backward()
        with torch.no_grad():
            stepped = layer.method.scale - 0.1 * layer.method.scale.grad
        grown[forgets] = (stepped.abs() > 1).tolist()
    assert grown == {False: [True, True], True: [True, False]}


def test_ida_loss_is_the_bilinear_distance():
    layer, x = make("conv", "ida")
    layer(x)
    assert surge.extra_loss(layer) == 0  # until an epoch is announced
    layer.method.on_epoch(0, 10)
    layer(x)
    w = layer.weight.detach().numpy()
    missing = w - UNIT * sign(w) * wide(np.abs(layer.method.scale.detach().numpy()), w)
    close(surge.extra_loss(layer), PENALTY / 2 * (missing**2).sum())
    assert surge.extra_loss(layer.eval()) == 0


def test_ida_has_nothing_of_the_recurrence():
    names = {name for name, _ in BinaryLinear(4, 2, method="ida").method.named_parameters()}
    assert names == {"scale", "shift"}
    assert BinaryEmbedding(5, 4, method="ida").method.shift is None


@pytest.mark.parametrize("forgets", [False, True])
@pytest.mark.parametrize("case", CASES)
def test_ida_packed_weight_reproduces_the_layer(case, forgets):
    layer, values, scale = check_packed(case, "ida", {"forgets_sign": forgets})
    assert torch.equal(values, torch.where(layer.weight >= 0, 1.0, -1.0))
    torch.testing.assert_close(scale, UNIT * layer.method.scale.abs().detach())
    assert set(layer.method.state_dict()) - set(layer.method.dropped) == {"shift"}


def test_ida_rejects_a_negative_penalty():
    with pytest.raises(ConfigError, match="penalty=-1"):
        BinaryLinear(4, 2, method="ida", method_options={"penalty": -1.0})
