"""BiT against methods.md B21, in NumPy."""

import numpy as np
import pytest
import torch

import surge
from surge.layers import BinaryConv2d, BinaryEmbedding, BinaryLinear
from surge.layers.elastic import Elastic, elastic_signed, elastic_unsigned, initialize_
from surge.methods.bit import ElasticAttention
from tests.methods.reference import CASES, close, compute, make, run, sign

LEVEL = 0.625
"""Exact in every precision, so that a value at the level is at the level."""


def weight_rule(w):
    return np.abs(w).mean() * sign(w - w.mean()), lambda g: g


def signed_rule(x):
    """Value, gradient of x, gradient of the level."""
    return (
        LEVEL * sign(x),
        lambda g: g * (np.abs(x) <= LEVEL),
        lambda g: (sign(x) * g).sum() / np.sqrt(x.size),
    )


def unsigned_rule(x):
    share = x / LEVEL
    nearest = np.rint(share)
    inside = (x >= 0) & (x <= LEVEL)
    return (
        LEVEL * np.clip(nearest, 0, 1),
        lambda g: g * inside,
        lambda g: (g * ((x > LEVEL) + inside * (nearest - share))).sum() / np.sqrt(x.size),
    )


RULES = {False: signed_rule, True: unsigned_rule}


def prepared(case, unsigned):
    """A layer with shifts and a level away from where they start."""
    layer, x = make(case, "bit", {"unsigned": unsigned})
    with torch.no_grad():
        layer.method.shift.normal_(std=0.3)
        layer.method.level.level.fill_(LEVEL)
    x.flatten()[5:8] = torch.tensor([LEVEL, -LEVEL, LEVEL / 2])
    return layer, x


@pytest.mark.parametrize("unsigned", [False, True], ids=["signed", "unsigned"])
@pytest.mark.parametrize("case", CASES)
def test_bit_equals_numpy(case, unsigned):
    layer, x = prepared(case, unsigned)
    y, input_grad, grad = run(layer, x)
    shift = layer.geometry.along_input(layer.method.shift.detach()).numpy()
    z = x.numpy() + shift
    collected = {}

    def rule(x):
        value, back, level_back = RULES[unsigned](x)

        def both(g):
            collected["level"] = level_back(g)
            return back(g)

        return value, both

    expected = compute(layer, z, grad.numpy(), weight_rule=weight_rule, input_rule=rule)
    close(y, expected.output)
    close(layer.weight.grad, expected.weight_grad)
    close(input_grad, expected.input_grad)
    close(layer.method.level.level.grad, collected["level"])
    feature = 1 if z.ndim > 2 else -1
    others = tuple(d for d in range(z.ndim) if d != feature % z.ndim)
    close(layer.method.shift.grad, expected.input_grad.sum(axis=others))


@pytest.mark.parametrize("unsigned", [False, True], ids=["signed", "unsigned"])
def test_elastic_edges(unsigned):
    operator = elastic_unsigned if unsigned else elastic_signed
    x = torch.tensor([-LEVEL, -0.0, 0.0, LEVEL / 2, LEVEL, 2.0, -torch.inf, torch.inf]).double()
    x.requires_grad_()
    level = torch.tensor(LEVEL, dtype=torch.double)
    y = operator(x, level)
    y.sum().backward()
    value, back, _ = RULES[unsigned](x.detach().numpy())
    close(y, value)
    close(x.grad, back(np.ones(8)))
    assert operator(torch.tensor([torch.nan]), torch.tensor(1.0)).isnan().all()


@pytest.mark.parametrize("operator", [elastic_signed, elastic_unsigned])
def test_levels_come_out_in_the_precision_of_the_input(operator):
    x = torch.tensor([-1.0, 0.2, 1.0]).bfloat16().requires_grad_()
    y = operator(x, torch.tensor(LEVEL))
    y.sum().backward()
    assert y.dtype == x.grad.dtype == torch.bfloat16


def test_level_is_used_above_its_floor():
    y = elastic_signed(torch.tensor([1.0, -1.0]), torch.tensor(-3.0))
    assert y.tolist() == pytest.approx([1e-5, -1e-5])


@pytest.mark.parametrize("unsigned", [False, True], ids=["signed", "unsigned"])
def test_surrogate_is_zero_where_no_gradient_passes(unsigned):
    layer, x = prepared("linear", unsigned)
    z = x.clone().requires_grad_()
    layer.method.binarize(z).backward(torch.ones_like(z))
    assert torch.equal(layer.method.surrogate_is_zero(x), z.grad == 0)


def test_embedding_has_a_scale_per_row_and_one_centre():
    layer = BinaryEmbedding(7, 4, method="bit").double()
    with torch.no_grad():
        layer.weight.add_(0.3)
    w = layer.weight.detach().numpy()
    expected = np.abs(w).mean(axis=1, keepdims=True) * sign(w - w.mean())
    rows = torch.tensor([3, 3, 0])
    y = layer(rows)
    close(y, expected[rows])
    y.backward(torch.ones_like(y))
    assert layer.weight.grad[3].eq(2).all() and layer.weight.grad[1].eq(0).all()


def test_packed_weight_reproduces_the_weight():
    layer, _ = prepared("linear", False)
    values, scale = layer.packed_weight()
    assert set(values.unique().tolist()) == {-1.0, 1.0}
    close(values * scale[:, None], weight_rule(layer.weight.detach().numpy())[0])


def test_initialize_takes_levels_from_the_first_batch():
    layers = torch.nn.Sequential(
        BinaryLinear(6, 5, method="bit"),
        BinaryLinear(5, 3, method="bit", method_options={"unsigned": True}),
    )
    x = torch.randn(4, 6)
    names = initialize_(layers, x)
    assert names == ["0.method.level", "1.method.level"]
    first, second = (layer.method.level for layer in layers)
    torch.testing.assert_close(first.level.detach(), 2 * x.abs().mean())
    with torch.no_grad():
        torch.testing.assert_close(second.level.detach(), 4 * layers[0](x).abs().mean())
    assert layers.training and all(part.initialized for part in (first, second))
    found = first.level.item()
    layers(10 * x)
    assert first.level.item() == found


def test_initialized_levels_are_kept_even_at_exactly_one():
    layer = BinaryLinear(6, 5, method="bit")
    initialize_(layer, torch.randn(4, 6))
    with torch.no_grad():
        layer.method.level.level.fill_(1.0)
    fresh = BinaryLinear(6, 5, method="bit")
    fresh.load_state_dict(layer.state_dict())
    assert initialize_(fresh, torch.randn(4, 6)) == []
    assert fresh.method.level.level == 1.0


def test_initialize_leaves_a_model_without_levels_uncalled():
    assert initialize_(torch.nn.Linear(3, 2)) == []


def test_surge_sees_the_shifted_input():
    layer, x = prepared("linear", False)
    surge.compensate_(layer, fixed_scale=2.0)
    plain, _ = prepared("linear", False)
    plain.load_state_dict({k: v for k, v in layer.state_dict().items() if "auxiliary" not in k})
    _, repaired, grad = run(layer, x)
    _, bare, _ = run(plain, x)
    close(repaired - bare, 2.0 * grad.numpy() @ layer.auxiliary.weight.detach().numpy())
    z = x + layer.method.shift.detach()
    close(layer.auxiliary.weight.grad, 2.0 * grad.T.numpy() @ z.numpy())


def test_attention_rule_equals_numpy():
    rule = ElasticAttention().double()
    levels = dict(zip(("query", "key", "value", "probability"), (0.5, 0.7, 0.9, 0.2), strict=True))
    with torch.no_grad():
        for name, value in levels.items():
            getattr(rule, f"{name}_level").level.fill_(value)
    x = torch.randn(2, 3, 4, 5).double()
    for name in ("query", "key", "value"):
        close(getattr(rule, name)(x), levels[name] * sign(x.numpy()))
    e = np.exp(x.numpy() - x.numpy().max(-1, keepdims=True))
    p = e / e.sum(-1, keepdims=True)
    close(rule.weigh(x, torch.nn.Identity()), 0.2 * np.clip(np.rint(p / 0.2), 0, 1))


def test_elastic_says_its_two_values():
    assert "{0, a}" in repr(Elastic(unsigned=True)) and "{-a, a}" in repr(Elastic())


def test_convolution_shift_is_per_channel():
    layer = BinaryConv2d(3, 2, 3, method="bit")
    assert layer.method.shift.shape == (3,)
