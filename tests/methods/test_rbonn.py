"""RBONN against methods.md B10, in NumPy."""

import copy
import io

import numpy as np
import pytest
import torch
from torch import nn

import surge
from surge.errors import ConfigError
from surge.layers import BinaryEmbedding, BinaryLinear
from surge.methods.rbonn import bilinear_weight, ranks
from tests.methods.reference import CASES, check_packed, close, compute, make, run, sign, triangle

UNIT, PENALTY = 0.02, 1e-4


def wide(vector, w):
    return vector.reshape(-1, *(1,) * (w.ndim - 1))


def per_filter_sum(w):
    return w.reshape(len(w), -1).sum(axis=1)


class Weights:
    """The weight rule of the authors' backward, penalty included if asked for."""

    def __init__(self, layer, chosen, *, penalty=0.0, training=True):
        method = layer.method
        self.scale, self.u = method.scale.detach().numpy(), method.recurrence.detach().numpy()
        self.last, self.chosen = method.last_gradient.numpy(), chosen
        self.penalty, self.training = penalty, training
        self.scale_grad = self.u_grad = None

    def __call__(self, w):
        a = wide(np.abs(self.scale), w)
        indicator = wide(self.chosen, w) if self.training else 0.0
        v = w - wide(self.u, w) * indicator * self.last
        missing = v - UNIT * sign(v) * a

        def back(g):
            to_v = g * a + self.penalty * missing
            to_a = per_filter_sum(g * v) - self.penalty * per_filter_sum(missing * UNIT * sign(v))
            self.scale_grad = to_a * np.sign(self.scale)
            self.u_grad = -per_filter_sum(to_v * indicator * self.last)
            return to_v

        return UNIT * sign(v) * a, back


def smallest(scale, count):
    chosen = np.zeros(len(scale))
    chosen[np.argsort(np.abs(scale))[:count]] = 1
    return chosen


def input_rule(x):
    return sign(x), lambda g: g * triangle(x)


def prepared(case, options=None):
    """A layer with distinct scales, rates and a last gradient."""
    layer, x = make(case, "rbonn", options)
    with torch.no_grad():
        layer.method.recurrence.uniform_(0.1, 0.5)
        layer.method.last_gradient.normal_()
    return layer, x


@pytest.mark.parametrize("penalised", [False, True])
@pytest.mark.parametrize("case", CASES)
def test_rbonn_equals_numpy(case, penalised):
    layer, x = prepared(case)
    if penalised:
        layer.method.on_epoch(0, 10)
    count = int(layer.weight.shape[0] * (1 - 0.6))
    rule = Weights(
        layer,
        smallest(layer.method.scale.detach().numpy(), count),
        penalty=float(layer.method.active_penalty),
    )
    leaf = x.clone().requires_grad_()
    y = layer(leaf)
    grad = torch.randn(y.shape, dtype=y.dtype, generator=torch.Generator().manual_seed(1))
    ((y * grad).sum() + layer.method.extra_loss(layer.weight)).backward()
    expected = compute(layer, x.numpy(), grad.numpy(), weight_rule=rule, input_rule=input_rule)
    close(y, expected.output)
    close(layer.weight.grad, expected.weight_grad)
    close(leaf.grad, expected.input_grad)
    close(layer.method.scale.grad, rule.scale_grad)
    close(layer.method.recurrence.grad, rule.u_grad)
    assert rule.chosen.sum() == count and layer.method.recurrence.grad.count_nonzero() == count


def test_rbonn_loss_is_the_bilinear_distance():
    layer, x = prepared("conv")
    assert layer.method.active_penalty == 0  # until an epoch is announced
    layer.method.on_epoch(0, 10)
    layer(x)
    w = layer.weight.detach().numpy()
    rule = Weights(layer, smallest(layer.method.scale.detach().numpy(), 2))
    binary, _ = rule(w)
    v = w - wide(rule.u, w) * wide(rule.chosen, w) * rule.last
    close(surge.extra_loss(layer), PENALTY / 2 * ((v - binary) ** 2).sum())
    assert surge.extra_loss(layer.eval()) == 0


def test_rbonn_backtracks_the_filters_with_the_smallest_scales():
    layer = BinaryLinear(4, 10, method="rbonn")
    scale = torch.tensor([0.9, -0.1, 0.5, 0.2, -0.8, 0.3, 0.7, -0.05, 0.6, 0.4])
    chosen = layer.method.chosen(scale.abs())
    assert chosen.nonzero().flatten().tolist() == [1, 3, 5, 7]


def test_rbonn_quirk_compares_indices_instead_of_ranks():
    layer = BinaryLinear(4, 10, method="rbonn", method_options={"rank_filters": False})
    scale = torch.tensor([0.9, 0.1, 0.5, 0.2, 0.8, 0.3, 0.7, 0.05, 0.6, 0.4])
    order = np.argsort(scale.numpy())
    expected = [place for place, index in enumerate(order) if index < 4]
    assert layer.method.chosen(scale).nonzero().flatten().tolist() == expected
    assert expected != [1, 3, 5, 7]


def test_rbonn_evaluates_the_latent_weight_itself():
    layer, x = prepared("conv")
    layer.eval()
    y, _, grad = run(layer, x)
    rule = Weights(layer, None, training=False)
    expected = compute(layer, x.numpy(), grad.numpy(), weight_rule=rule, input_rule=input_rule)
    close(y, expected.output)


def steps(layer, count, *, start=0):
    optimizer = torch.optim.SGD(layer.parameters(), lr=0.1)
    for step in range(start, start + count):
        x = torch.randn(5, 6, generator=torch.Generator().manual_seed(step))
        optimizer.zero_grad()
        layer(x).square().sum().backward()
        optimizer.step()
        surge.on_step(layer)
    return layer


def test_rbonn_keeps_the_gradient_of_the_last_step():
    layer = steps(BinaryLinear(6, 5, method="rbonn"), 1)
    held = layer.method.last_gradient
    assert torch.equal(held, layer.weight.grad) and held.any()
    layer.zero_grad()  # the authors' recurrence would end here
    layer.method.on_step(layer.weight)
    assert held.any()
    layer.weight.grad = torch.full_like(layer.weight, torch.inf)
    layer.method.on_step(layer.weight)
    assert held.isfinite().all() and held is layer.method.last_gradient


def test_rbonn_keeps_the_unscaled_gradient_under_loss_scaling():
    kept = []
    for size in (1.0, 1024.0):
        torch.manual_seed(0)
        layer = BinaryLinear(6, 4, method="rbonn")
        optimizer = torch.optim.SGD(layer.parameters(), lr=0.1)
        scaler = torch.amp.GradScaler("cpu", init_scale=size)
        scaler.scale(layer(torch.linspace(-1, 1, 12).view(2, 6)).square().sum()).backward()
        scaler.step(optimizer)
        surge.on_step(layer)
        kept.append(layer.method.last_gradient)
    assert kept[0].any()
    torch.testing.assert_close(kept[1], kept[0])


def test_rbonn_resumes_bit_for_bit():
    torch.manual_seed(2)
    whole = BinaryLinear(6, 5, method="rbonn")
    first = steps(copy.deepcopy(whole), 3)
    file = io.BytesIO()
    torch.save(first.state_dict(), file)
    file.seek(0)
    resumed = BinaryLinear(6, 5, method="rbonn")
    resumed.load_state_dict(torch.load(file, weights_only=True))
    steps(whole, 5)
    steps(resumed, 2, start=3)
    for name, tensor in whole.state_dict().items():
        assert torch.equal(resumed.state_dict()[name], tensor), name


def test_rbonn_starts_as_the_authors_do():
    method = BinaryLinear(4, 2000, method="rbonn").method
    assert method.recurrence.eq(0.2).all() and not method.last_gradient.any()
    assert method.scale.mean().abs() < 0.1 and method.scale.std().item() == pytest.approx(
        1, abs=0.1
    )
    assert method.lr_factors == {"recurrence": 0.1} and method.undecayed == ("recurrence",)
    assert set(method.lr_factors) <= {name for name, _ in method.named_parameters()}


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("case", CASES)
def test_rbonn_packed_weight_reproduces_the_layer(case, training):
    def prepare(layer):
        nn.init.normal_(layer.method.last_gradient)
        layer.train(training)

    layer, values, scale = check_packed(case, "rbonn", prepare=prepare)
    assert torch.equal(values, torch.where(layer.weight >= 0, 1.0, -1.0))
    torch.testing.assert_close(scale, UNIT * layer.method.scale.abs().detach())
    assert torch.equal(layer.train().packed_weight()[0], values)
    assert set(layer.method.state_dict()) - set(layer.method.dropped) == {"shift"}


def test_rbonn_embedding_has_no_shift():
    layer = BinaryEmbedding(5, 4, method="rbonn")
    assert layer.method.shift is None
    layer(torch.arange(5)).sum().backward()
    assert layer.method.scale.grad is not None


def test_rbonn_compiled_step_uses_the_renewed_gradient():
    torch._dynamo.reset()
    torch.manual_seed(2)
    layers = [BinaryLinear(6, 5, method="rbonn")]
    layers.append(copy.deepcopy(layers[0]))
    compiled = torch.compile(layers[1], backend="aot_eager", fullgraph=True)
    for call in (layers[0], compiled):
        layer = layers[0] if call is layers[0] else layers[1]
        optimizer = torch.optim.SGD(layer.parameters(), lr=0.1)
        for step in range(3):
            optimizer.zero_grad()
            x = torch.randn(5, 6, generator=torch.Generator().manual_seed(step))
            call(x).square().sum().backward()
            optimizer.step()
            surge.on_step(layer)
    torch.testing.assert_close(layers[1].state_dict(), layers[0].state_dict())


@pytest.mark.parametrize(
    ("option", "value"), [("penalty", -1.0), ("threshold", 1.2), ("threshold", -0.2)]
)
def test_rbonn_rejects_bad_options(option, value):
    with pytest.raises(ConfigError, match=f"{option}={value} must"):
        BinaryLinear(4, 2, method="rbonn", method_options={option: value})


def test_rbonn_without_a_penalty_has_no_loss():
    layer = BinaryLinear(4, 2, method="rbonn", method_options={"penalty": 0.0})
    layer.method.on_epoch(0, 10)
    surge.extra_loss(layer).backward()
    assert surge.extra_loss(layer) == 0
    assert not layer.weight.grad.any() and not layer.method.scale.grad.any()


def test_rbonn_operator_passes_opcheck():
    weight, scale = torch.randn(3, 2, 2), torch.rand(3, 1, 1)
    torch.library.opcheck(bilinear_weight, (weight.requires_grad_(), scale.requires_grad_()))


@pytest.mark.parametrize("count", [1, 7, 64])
def test_ranks_are_those_of_a_stable_sort(count):
    x = torch.randint(0, 9, (count,), generator=torch.Generator().manual_seed(count)).float()
    assert torch.equal(ranks(x), x.argsort(stable=True).argsort())


@pytest.mark.parametrize(
    ("filters", "threshold", "backtracked"),
    [(10, 0.9, 1), (20, 0.9, 2), (10, 0.6, 4), (64, 0.6, 25)],
)
def test_rbonn_backtracks_the_share_that_the_threshold_leaves(filters, threshold, backtracked):
    layer = BinaryLinear(4, filters, method="rbonn", method_options={"threshold": threshold})
    assert layer.method.backtracked == backtracked
