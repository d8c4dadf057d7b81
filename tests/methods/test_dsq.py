"""DSQ against methods.md B13, in NumPy."""

import math

import numpy as np
import pytest
import torch
from torch import nn

import surge
from surge.layers import BinaryEmbedding, BinaryLinear
from surge.methods.dsq import soft_sign
from surge.recipes import get_recipe
from tests.methods.reference import (
    CASES,
    check_packed,
    close,
    compute,
    make,
    operator_of,
    run,
    sign,
)
from tests.runtime.building import import_engine


class Curve:
    """DSQ's quantiser at one bit, with its gradients to u, a, lower and upper."""

    def __init__(self, a, lower=-1.0, upper=1.0):
        self.a, self.lower, self.upper = a, lower, upper
        self.grads = None

    def value(self, u):
        """p(u), the soft curve from -1 to 1."""
        a, width, middle = self.a, self.upper - self.lower, (self.lower + self.upper) / 2
        k = math.log(2 / a - 1) / width
        return np.tanh(k * (np.clip(u, self.lower, self.upper) - middle)) / (1 - a)

    def __call__(self, u):
        a, lower, upper = self.a, self.lower, self.upper
        width, middle = upper - lower, (lower + upper) / 2
        k = math.log(2 / a - 1) / width
        inside = (u >= lower) & (u <= upper)
        side, curve = sign(u - middle), self.value(u)
        bent = k * (1 - (curve * (1 - a)) ** 2) / (1 - a)

        def back(g):
            soft = g * width / 2
            v = np.clip(u, lower, upper)
            k_of_a = -2 / (a**2 * (2 / a - 1)) / width
            to_a = bent / k * (v - middle) * k_of_a + curve / (1 - a)
            # Where u is cut off, the edge takes its place.
            own = -0.5 * bent - bent / k * (v - middle) * k / width
            to_upper = g * (1 + side) / 2 + soft * (own + bent * (u > upper))
            own = -0.5 * bent + bent / k * (v - middle) * k / width
            to_lower = g * (1 - side) / 2 + soft * (own + bent * (u < lower))
            self.grads = (soft * to_a).sum(), to_lower.sum(), to_upper.sum()
            return soft * bent * inside

        return middle + width / 2 * side, back


@pytest.mark.parametrize("a", [0.2, 0.01, 0.5])
@pytest.mark.parametrize("case", CASES)
def test_dsq_equals_numpy(case, a):
    layer, x = make(case, "dsq")
    with torch.no_grad():
        layer.method.weight_shape.fill_(a)
        layer.method.input_shape.fill_(0.6 * a)
    y, input_grad, grad = run(layer, x)
    of_weight, of_input = (
        Curve(layer.method.weight_shape.item()),
        Curve(layer.method.input_shape.item()),
    )
    expected = compute(layer, x.numpy(), grad.numpy(), weight_rule=of_weight, input_rule=of_input)
    close(y, expected.output)
    close(layer.weight.grad, expected.weight_grad)
    close(input_grad, expected.input_grad)
    close(layer.method.weight_shape.grad, of_weight.grads[0], 1e-8)
    close(layer.method.input_shape.grad, of_input.grads[0], 1e-8)


@pytest.mark.parametrize("case", ["conv", "linear"])
def test_dsq_learned_interval_equals_numpy(case):
    layer, x = make(case, "dsq", {"learn_interval": True})
    method = layer.method
    with torch.no_grad():
        method.input_lower.fill_(-0.75)
        method.input_upper.fill_(1.5)
    y, input_grad, grad = run(layer, x)
    of_input = Curve(method.input_shape.item(), -0.75, 1.5)
    expected = compute(
        layer,
        x.numpy(),
        grad.numpy(),
        weight_rule=Curve(method.weight_shape.item()),
        input_rule=of_input,
    )
    close(y, expected.output)
    close(input_grad, expected.input_grad)
    for name, value in zip(("shape", "lower", "upper"), of_input.grads, strict=True):
        close(getattr(method, f"input_{name}").grad, value, 1e-8)
    zero = (x < -0.75) | (x > 1.5)
    assert torch.equal(method.surrogate_is_zero(x), zero)


def test_dsq_curve_runs_from_minus_one_to_one():
    for a in (0.5, 0.2, 1e-3):
        curve = Curve(a, -0.5, 2.0)
        assert curve.value(np.array([-0.5, 0.75, 2.0])) == pytest.approx([-1, 0, 1])


def test_dsq_gradients_are_those_of_the_soft_curve():
    """Finite differences of the soft curve, whose middle and width may move."""
    a, lower, upper = (torch.tensor(v, dtype=torch.double) for v in (0.3, -0.8, 1.1))
    u = torch.linspace(-1.97, 2, 41, dtype=torch.double)  # none at an edge

    def soft(lower, upper, a):
        curve = Curve(float(a), float(lower), float(upper))
        return ((upper - lower) / 2).numpy() * curve.value(u.numpy())

    for index in range(3):
        values = [lower, upper, a]
        leaves = [v.clone().requires_grad_(i == index) for i, v in enumerate(values)]
        bits = soft_sign(u, *leaves)
        middle = (leaves[0] + leaves[1]) / 2
        (bits - middle).sum().backward()
        moved = [[v + d * (i == index) for i, v in enumerate(values)] for d in (1e-6, -1e-6)]
        numeric = (soft(*moved[0]) - soft(*moved[1])).sum() / 2e-6
        # The width multiplies the bits where the soft curve has its own value.
        sides = np.where(u.numpy() >= 0.15, 1.0, -1.0)
        gap = (sides - Curve(0.3, -0.8, 1.1).value(u.numpy())).sum() / 2
        numeric += {0: -gap, 1: gap, 2: 0.0}[index]
        assert leaves[index].grad.item() == pytest.approx(numeric, rel=1e-5, abs=1e-6)


def test_dsq_curves_start_at_a_fifth():
    method = BinaryLinear(4, 2, method="dsq").method
    assert method.weight_shape.item() == method.input_shape.item() == pytest.approx(0.2)


def test_dsq_shape_parameters_stay_in_their_range():
    layer = BinaryLinear(4, 2, method="dsq")
    method = layer.method
    nn.init.constant_(method.weight_shape, 0.7)
    nn.init.constant_(method.input_shape, -0.1)
    x = torch.randn(3, 4, requires_grad=True)
    layer(x).sum().backward()
    assert all(p.grad.isfinite().all() for p in layer.parameters())
    method.on_step(layer.weight)
    assert method.weight_shape == 0.5 and method.input_shape.item() == pytest.approx(1e-3)
    layer.zero_grad()
    layer(0.3 * torch.rand(3, 4)).sum().backward()
    assert method.weight_shape.grad != 0 and method.input_shape.grad != 0  # they can return


def test_dsq_gradient_passes_at_the_edges():
    layer = BinaryLinear(4, 2, method="dsq")
    z = torch.tensor([-1.0, 1.0, -1.001, 1.001, math.inf], requires_grad=True)
    layer.method.binarize(z).sum().backward()
    assert (z.grad != 0).tolist() == [True, True, False, False, False]
    assert torch.equal(layer.method.surrogate_is_zero(z.detach()), z.grad == 0)


@pytest.mark.parametrize("case", CASES)
def test_dsq_packed_weight_reproduces_the_layer(case):
    layer, values, scale = check_packed(case, "dsq")
    assert torch.equal(values, torch.where(layer.weight >= 0, 1.0, -1.0)) and scale.eq(1).all()


def test_dsq_learned_interval_is_kept_at_export(tmp_path):
    """A file has the middle and the width of the inputs, and the engine takes the nearer end."""
    engine = import_engine()
    ends = (-1.0, 3.0)
    layer, _, _ = check_packed(
        "conv",
        "dsq",
        {"learn_interval": True},
        prepare=lambda layer: nn.init.constant_(layer.method.input_upper, ends[1]),
        input_rule=Curve(0.2, *ends),
    )
    kept = set(layer.method.state_dict()) - set(layer.method.dropped)
    assert kept == {"input_lower", "input_upper"}
    x = torch.randn(5, 4, 7, 6)
    x.flatten()[:7] = torch.tensor([-1.0, 3.0, 0.0, 1.0, 0.9999, 1.0001, -9.0])
    packed = surge.pack(layer, x[:1], tmp_path / "layer.surge")
    actual = engine.load(packed.path).run(x.numpy())
    # The ends, and so all sums, are whole numbers that fp32 holds exactly.
    weight = np.where(layer.weight.detach().numpy() >= 0, 1.0, -1.0)
    expected = operator_of(layer).forward(np.where(x.numpy() >= 1, 3.0, -1.0), weight)
    assert np.array_equal(actual, expected)
    with torch.no_grad():
        assert np.array_equal(layer(x).numpy(), expected)


def test_dsq_gives_the_same_bits_with_and_without_gradient():
    layer, x = make("conv", "dsq", {"learn_interval": True})
    with torch.no_grad():
        layer.method.input_lower.fill_(-0.3)
        layer.method.input_upper.fill_(0.9)
        x.flatten()[:4] = torch.tensor([0.3, 0.3 - 1e-12, -math.inf, math.inf])
        without = layer(x)
    assert torch.equal(layer(x), without)


def test_dsq_embedding_has_no_input():
    layer = BinaryEmbedding(5, 4, method="dsq", method_options={"learn_interval": True})
    assert set(layer.method.state_dict()) == {"weight_shape"}


@pytest.mark.parametrize(("model", "paper"), [("resnet20", 84.1), ("vggsmall", 91.7)])
def test_dsq_recipes(model, paper):
    assert get_recipe(f"cifar10-{model}-dsq").paper == paper
    assert get_recipe(f"cifar10-{model}-dsq-surge").surge is not None


def test_dsq_ends_of_a_learned_interval_stay_apart():
    layer = BinaryLinear(4, 3, method="dsq", method_options={"learn_interval": True})
    with torch.no_grad():
        layer.method.input_lower.fill_(0.5)
        layer.method.input_upper.fill_(-0.5)
    layer.method.on_step(layer.weight)
    lower, upper = layer.method.interval()
    assert lower == 0.5 and upper > lower
    assert layer(torch.randn(2, 4)).isfinite().all()
