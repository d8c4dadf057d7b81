"""RBNN against methods.md B11, in NumPy."""

import math

import numpy as np
import pytest
import torch

from surge.errors import ConfigError
from surge.layers import BinaryConv2d, BinaryLinear
from surge.methods.rbnn import most_square, random_rotation, sign_training_aware
from tests.methods.reference import (
    CASES,
    check_packed,
    close,
    compute,
    make,
    per_filter_mean,
    run,
    sign,
)


def schedule(epoch, epochs, t_min=1e-2, t_max=10.0):
    low, high = math.log10(t_min), math.log10(t_max)
    t = 10 ** (low + epoch / epochs * (high - low))
    return max(1 / t, 1), t


def slope(u, k, t):
    return k * np.maximum(0, math.sqrt(2) * t - t**2 * np.abs(u))


def standardised(w):
    """v and the map from dL/dv to dL/dw."""
    n = w[0].size
    centred = w - per_filter_mean(w)
    std = np.sqrt(per_filter_mean(centred**2) * n / (n - 1))
    v = centred / std
    return v, lambda g: (g - per_filter_mean(g) - v * n * per_filter_mean(g * v) / (n - 1)) / std


class Weights:
    """The weight rule; keeps the gradient of the angles."""

    def __init__(self, method, k, t, *, detached=False):
        self.left, self.right = method.left.numpy(), method.right.numpy()
        self.angle, self.k, self.t = method.angle.detach().numpy(), k, t
        self.detached, self.angle_grad = detached, None

    def __call__(self, w):
        v, back = standardised(w)
        shape = (len(w), len(self.left), len(self.right))
        rotated = np.einsum("ji,ojk,kl->oil", self.left, v.reshape(shape), self.right)
        rotated = rotated.reshape(w.shape)
        share = np.abs(np.sin(self.angle)).reshape(-1, *(1,) * (w.ndim - 1))
        u = v + share * (rotated - v)

        def pull(g):
            g = g * slope(u, self.k, self.t)
            turn = np.cos(self.angle) * np.sign(np.sin(self.angle))
            self.angle_grad = turn * (g * (rotated - v)).reshape(len(w), -1).sum(axis=1)
            to_v = (1 - share) * g
            if not self.detached:
                back_turned = np.einsum(
                    "ij,ojk,lk->oil", self.left, (share * g).reshape(shape), self.right
                )
                to_v = to_v + back_turned.reshape(w.shape)
            return back(to_v)

        return sign(u), pull


def input_rule(t):
    t = max(t, 1)

    def rule(x):
        axes, n = tuple(range(1, x.ndim)), x[0].size
        centred = x - x.mean(axis=axes, keepdims=True)
        std = np.sqrt((centred**2).sum(axis=axes, keepdims=True) / (n - 1) + 1e-5)
        z = centred / std

        def pull(g):
            g = g * slope(z, 1, t)
            through = (g * z).sum(axis=axes, keepdims=True) * z / (n - 1)
            return (g - g.mean(axis=axes, keepdims=True) - through) / std

        return sign(z), pull

    return rule


@pytest.mark.parametrize("detached", [False, True])
@pytest.mark.parametrize("epoch", [0, 60, 99])
@pytest.mark.parametrize("case", CASES)
def test_rbnn_equals_numpy(case, epoch, detached):
    layer, x = make(case, "rbnn", {"detach_rotation": detached})
    with torch.no_grad():
        layer.method.angle.uniform_(-3, 3)
        layer.method.alpha[0] *= -1
    layer.method.on_epoch(epoch, 100)
    k, t = layer.method.k.item(), layer.method.t.item()
    rule = Weights(layer.method, k, t, detached=detached)
    y, input_grad, grad = run(layer, x)
    alpha = layer.method.alpha.detach().numpy()
    expected = compute(
        layer,
        x.numpy(),
        grad.numpy(),
        weight_rule=rule,
        input_rule=input_rule(t),
        factor=alpha.reshape(-1, 1, 1) if x.ndim == 4 else alpha,
    )
    close(y, expected.output)
    close(layer.weight.grad, expected.weight_grad, 1e-9)
    close(input_grad, expected.input_grad, 1e-9)
    close(layer.method.angle.grad, rule.angle_grad, 1e-9)
    others = (0, 2, 3) if x.ndim == 4 else (0,)
    close(layer.method.alpha.grad, (grad.numpy() * expected.product).sum(axis=others))


def alternate(w, left, right, rounds=3):
    """The authors' update of the rotations, with NumPy's SVD."""
    v = standardised(w)[0].reshape(len(w), len(left), len(right))
    agreement = []
    for _ in range(rounds):
        bits = [sign(left.T @ m @ right) for m in v]
        agreement.append(sum(np.abs(left.T @ m @ right).sum() for m in v))
        u, _, vh = np.linalg.svd(sum(b @ right.T @ m.T for b, m in zip(bits, v, strict=True)))
        left = vh.T @ u.T
        u, _, vh = np.linalg.svd(sum(m.T @ left @ b for b, m in zip(bits, v, strict=True)))
        right = u @ vh
    agreement.append(sum(np.abs(left.T @ m @ right).sum() for m in v))
    return left, right, agreement


@pytest.mark.parametrize("case", CASES)
def test_rbnn_rotations_equal_numpy(case):
    layer, _ = make(case, "rbnn")
    method = layer.method
    left, right, agreement = alternate(
        layer.weight.detach().numpy(), method.left.numpy().copy(), method.right.numpy().copy()
    )
    held = method.left
    method.adapt(layer.weight)
    assert held is method.left
    close(method.left, left, 1e-8)
    close(method.right, right, 1e-8)
    close(method.left @ method.left.T, np.eye(len(left)))
    assert agreement == sorted(agreement)  # each round brings filters closer to their signs


def test_rbnn_rotations_of_half_precision_are_computed_in_float32():
    layer = BinaryConv2d(4, 6, 3, method="rbnn").bfloat16()
    layer.method.adapt(layer.weight)
    assert layer.method.left.dtype == torch.bfloat16
    turned = (layer.method.left @ layer.method.left.T).float()
    torch.testing.assert_close(turned, torch.eye(6), atol=0.02, rtol=0)


def test_rbnn_starts_from_rotations_that_leave_the_random_stream_alone():
    states = []
    for method in ("bnn", "rbnn"):
        torch.manual_seed(3)
        layer = BinaryConv2d(4, 6, 3, method=method)
        states.append(torch.get_rng_state())
    assert torch.equal(*states)
    left, right = layer.method.left, layer.method.right
    assert left.shape == right.shape == (6, 6) and not torch.equal(left, right)
    torch.testing.assert_close(left @ left.T, torch.eye(6))
    assert torch.equal(random_rotation(5, 0), random_rotation(5, 0))


def test_rbnn_takes_the_most_square_factors():
    assert [most_square(n) for n in (16 * 9, 64 * 9, 12, 13, 2)] == [
        (12, 12),
        (24, 24),
        (3, 4),
        (1, 13),
        (1, 2),
    ]


def test_rbnn_weights_learn_from_the_first_step_unless_the_rotation_is_detached():
    for detached in (False, True):
        layer, x = make("conv", "rbnn", {"detach_rotation": detached})
        assert torch.allclose(layer.method.angle, torch.tensor(math.pi / 2).double())
        run(layer, x)
        # In the authors' code the factor 1 - abs(sin(pi/2)) is 0 ...
        assert bool(layer.weight.grad.abs().max() < 1e-12) is detached
        with torch.no_grad():
            layer.method.angle -= 0.1
        layer.zero_grad()
        run(layer, x)
        assert layer.weight.grad.abs().max() > 1e-6  # ... until the angles have moved


@pytest.mark.parametrize(
    ("epoch", "k", "t"),
    [(0, 100, 0.01), (250, 10**1.25, 10**-1.25), (500, 10**0.5, 10**-0.5), (999, 1, 9.9311605)],
)
def test_rbnn_schedule_at_named_epochs(epoch, k, t):
    layer = BinaryLinear(4, 2, method="rbnn")
    held = layer.method.t
    assert held.item() == pytest.approx(0.01)
    layer.method.on_epoch(epoch, 1000)
    assert (k, t) == pytest.approx(schedule(epoch, 1000), rel=1e-6)
    assert layer.method.k.item() == pytest.approx(k, rel=1e-6)
    assert held is layer.method.t and held.item() == pytest.approx(t, rel=1e-6)


@pytest.mark.parametrize(("epoch", "edge"), [(0, math.sqrt(2)), (99, math.sqrt(2) / 9.3325)])
def test_rbnn_input_gradient_ends_at_root_two_over_t(epoch, edge):
    layer = BinaryLinear(4, 2, method="rbnn")
    layer.method.on_epoch(epoch, 100)
    z = torch.tensor([0.0, 0.99 * edge, 1.01 * edge, -1.01 * edge], requires_grad=True)
    layer.method.binarize(z).sum().backward()
    assert layer.method.surrogate_is_zero(z.detach()).tolist() == [False, False, True, True]
    assert torch.equal(layer.method.surrogate_is_zero(z.detach()), z.grad == 0)


@pytest.mark.parametrize("training", [True, False])
def test_rbnn_inputs_are_standardised_per_sample_at_inference_too(training):
    layer, x = make("conv", "rbnn")
    layer.train(training)
    z = layer.method.prepare_input(7 + 3 * x)
    torch.testing.assert_close(z.mean(dim=(1, 2, 3)), torch.zeros(3).double())
    torch.testing.assert_close(z.std(dim=(1, 2, 3)), torch.ones(3).double(), rtol=1e-5, atol=0)
    torch.testing.assert_close(layer.method.prepare_input(x[0]), layer.method.prepare_input(x)[0])


@pytest.mark.parametrize("case", CASES)
def test_rbnn_packed_weight_reproduces_the_layer(case):
    def prepare(layer):
        with torch.no_grad():
            layer.method.alpha[0] *= -1
            layer.method.angle.uniform_(0.2, 1.2)
        layer.method.adapt(layer.weight)

    layer, values, scale = check_packed(case, "rbnn", prepare=prepare, input_rule=input_rule(1))
    assert torch.equal(scale, layer.method.alpha)
    assert not torch.equal(values, torch.where(layer.weight >= 0, 1.0, -1.0))
    assert set(layer.method.state_dict()) - set(layer.method.dropped) == {"alpha"}


def test_rbnn_alpha_starts_at_the_mean_magnitude():
    layer = BinaryConv2d(4, 6, 3, method="rbnn")
    torch.testing.assert_close(layer.method.alpha, layer.weight.abs().flatten(1).mean(1))


@pytest.mark.parametrize(
    "options", [{"t_min": 0.0}, {"t_min": 2.0, "t_max": 1.0}, {"t_max": math.inf}]
)
def test_rbnn_rejects_a_bad_schedule(options):
    with pytest.raises(ConfigError, match="need 0 < t_min <= t_max"):
        BinaryLinear(4, 2, method="rbnn", method_options=options)


def test_rbnn_rejects_filters_of_one_weight():
    with pytest.raises(ConfigError, match="at least 2 weights"):
        BinaryLinear(1, 2, method="rbnn")


def test_rbnn_operator_passes_opcheck():
    one = torch.ones(())
    torch.library.opcheck(sign_training_aware, (torch.randn(3, 2, requires_grad=True), one, one))
