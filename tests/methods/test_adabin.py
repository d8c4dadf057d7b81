"""AdaBin's formulas (Tu et al., ECCV 2022) in NumPy."""

import math
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

import surge
from surge.compensation.reference import measure
from surge.errors import ConfigError
from surge.layers import BinaryConv2d, BinaryEmbedding, BinaryLinear
from surge.recipes import get_recipe
from surge.train.watch import BitWatch
from tests.methods.reference import (
    CASES,
    close,
    compute,
    make,
    operator_of,
    per_filter_mean,
    run,
    sign,
    triangle,
)
from tests.train.losses import losses

ROOT = Path(__file__).parents[2]
LOSSES = {
    "cnn-adabin": [2.295018, 2.291575, 2.278471, 2.265598],
    "cnn-adabin-surge": [2.295018, 2.291575, 2.278651, 2.265597],
    "resnet20-adabin": [2.514974, 2.468727, 2.18171, 2.46078],
    "resnet20-adabin-surge": [2.514974, 2.50469, 2.303955, 2.249238],
}
"""Of the first 4 steps, as tests/train/golden has them for the methods of the paper."""


def schedule(epoch, epochs):
    t = 0.1 * 100 ** (epoch / epochs)
    return max(1 / t, 1), t


def sets(w):
    centre = per_filter_mean(w)
    return centre, np.sqrt(per_filter_mean((w - centre) ** 2))


def weight_rule(k, t):
    def rule(w):
        centre, distance = sets(w)
        v = (w - centre) / distance
        slope = k * t * (1 - np.tanh(t * v) ** 2)

        def back(g):
            n = w[0].size
            total, by_bit = n * per_filter_mean(g), n * per_filter_mean(g * sign(v))
            inner = g * slope  # dL/dv, over the distance: it multiplies sign and divides again
            to_distance = by_bit - n * per_filter_mean(inner * v)
            to_centre = total - n * per_filter_mean(inner)
            # distance depends on w through (w - centre) / (n distance); the centre's part is zero.
            return inner + to_centre / n + to_distance * v / n

        return centre + distance * sign(v), back

    return rule


class Inputs:
    """The input rule; keeps the gradients of centre and distance."""

    def __init__(self, centre, distance):
        self.centre, self.distance = centre, distance
        self.grads = None

    def __call__(self, x):
        z = (x - self.centre) / self.distance

        def back(g):
            to_centre = (g * (1 - triangle(z))).sum()
            to_distance = (g * (sign(z) - z * triangle(z))).sum()
            self.grads = to_centre, to_distance
            return g * triangle(z)

        return self.centre + self.distance * sign(z), back


@pytest.mark.parametrize("epoch", [0, 37, 99])
@pytest.mark.parametrize("case", CASES)
def test_adabin_equals_numpy(case, epoch):
    layer, x = make(case, "adabin")
    layer.method.on_epoch(epoch, 100)
    with torch.no_grad():
        layer.method.input_centre.fill_(0.25)
        layer.method.input_distance.fill_(1.5)
    of_input = Inputs(0.25, 1.5)
    y, input_grad, grad = run(layer, x)
    expected = compute(
        layer,
        x.numpy(),
        grad.numpy(),
        weight_rule=weight_rule(layer.method.k.item(), layer.method.t.item()),
        input_rule=of_input,
    )
    close(y, expected.output)
    close(layer.weight.grad, expected.weight_grad, 1e-9)
    close(input_grad, expected.input_grad)
    close(layer.method.input_centre.grad, of_input.grads[0])
    close(layer.method.input_distance.grad, of_input.grads[1])


def test_adabin_starts_from_plain_sign_of_the_inputs():
    layer, x = make("conv", "adabin")
    assert torch.equal(layer.method.prepare_input(x), x)
    assert torch.equal(layer.method.binarize(x), torch.where(x >= 0, 1.0, -1.0).double())


@pytest.mark.parametrize(("epoch", "k", "t"), [(0, 10, 0.1), (200, 1, 1), (300, 1, 10**0.5)])
def test_adabin_schedule_at_named_epochs(epoch, k, t):
    layer = BinaryLinear(4, 2, method="adabin")
    held = layer.method.t
    layer.method.on_epoch(epoch, 400)
    assert (k, t) == pytest.approx(schedule(epoch, 400))
    assert layer.method.k.item() == pytest.approx(k, rel=1e-6)
    assert held is layer.method.t and held.item() == pytest.approx(t, rel=1e-6)


def test_adabin_mask_is_taken_after_shift_and_division():
    layer = BinaryLinear(4, 2, method="adabin")
    nn.init.constant_(layer.method.input_centre, 2.0)
    nn.init.constant_(layer.method.input_distance, 0.5)
    z = layer.method.prepare_input(torch.tensor([[1.4, 1.5, 1.6, 2.5]])).detach().requires_grad_()
    layer.method.binarize(z).sum().backward()
    assert layer.method.surrogate_is_zero(z.detach()).tolist() == [[True, True, False, True]]
    assert torch.equal(layer.method.surrogate_is_zero(z.detach()), z.grad == 0)


@pytest.mark.parametrize("case", CASES)
def test_adabin_packed_weight_reproduces_the_layer(case):
    layer, x = make(case, "adabin")
    layer, x = layer.float().eval(), x.float()
    values, scale = layer.packed_weight()
    assert scale.shape == (layer.weight.shape[0],)
    weight = (values * scale.view(-1, *(1,) * (values.dim() - 1))).double().numpy()
    expected = operator_of(layer).forward(sign(x.double().numpy()), weight)
    with torch.no_grad():
        close(layer(x), expected, tolerance=5e-6)
    close(scale, sets(layer.weight.detach().double().numpy())[1].flatten(), 1e-6)


def test_adabin_packed_values_are_bits_and_an_offset():
    """A file holds both: bits alone, without the centre, would be another network."""
    layer = BinaryLinear(6, 5, method="adabin")
    values, _ = layer.packed_weight()
    bits = layer.method.stored_values(layer.weight)
    centre, distance = layer.method.equalized(layer.weight.detach())
    assert set(bits.unique().tolist()) == {-1.0, 1.0} and not (values.abs() == 1).all()
    torch.testing.assert_close(values, bits + centre / distance)
    with torch.no_grad():
        layer.weight -= layer.weight.mean(dim=1, keepdim=True)
    torch.testing.assert_close(layer.packed_weight()[0].abs(), torch.ones_like(values))


def test_adabin_flips_do_not_depend_on_the_centre():
    layer = BinaryLinear(16, 4, method="adabin")
    watch = BitWatch(layer)
    with torch.no_grad():
        layer.weight += 5.0
    assert watch.flipped() == 0


def test_adabin_keeps_its_inputs_set_at_export():
    layer = BinaryLinear(4, 2, method="adabin")
    kept = set(layer.method.state_dict()) - set(layer.method.dropped)
    assert kept == {"input_centre", "input_distance"}
    assert not dict(BinaryEmbedding(5, 4, method="adabin").method.named_parameters())


def test_adabin_distance_of_the_inputs_stays_positive():
    layer = BinaryLinear(4, 2, method="adabin")
    nn.init.constant_(layer.method.input_distance, -0.3)
    layer.method.on_step(layer.weight)
    assert layer.method.input_distance.item() == pytest.approx(1e-4)


def test_adabin_constant_filter_stays_finite():
    layer = BinaryConv2d(2, 2, 3, bias=False, method="adabin")
    with torch.no_grad():
        layer.weight[0] = 0.5
    x = torch.randn(1, 2, 5, 5, requires_grad=True)
    layer(x).sum().backward()
    assert layer.weight.grad.isfinite().all() and x.grad.isfinite().all()


def test_adabin_compensation_sees_the_shifted_input():
    layer, x = make("linear", "adabin")
    nn.init.constant_(layer.method.input_centre, 0.5)
    compensation = surge.compensate_(layer, fixed_scale=2.0)
    _, _, grad = run(layer, x)
    z = layer.method.prepare_input(x).detach()
    weight_grad = compensation.parameters()[0].grad
    torch.testing.assert_close(weight_grad, 2 * grad.T @ z)


def test_smooth_reference_is_refused_where_inputs_are_no_signs():
    binary = BinaryLinear(8, 3, method="adabin")
    model = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Hardtanh(), binary)
    compensation = surge.compensate_(model)
    x = torch.randn(4, 6)
    with torch.no_grad():
        binary.method.input_distance.fill_(0.3)
    with pytest.raises(ConfigError, match="other inputs than -1 and"):
        measure(model, compensation, lambda: model(x).square().mean())


@pytest.mark.parametrize("options", [{"t_min": 0.0}, {"t_max": math.inf}])
def test_adabin_rejects_a_bad_schedule(options):
    with pytest.raises(ConfigError, match="need 0 < t_min <= t_max"):
        BinaryLinear(4, 2, method="adabin", method_options=options)


def test_adabin_rejects_filters_of_one_weight():
    with pytest.raises(ConfigError, match="at least 2 weights"):
        BinaryLinear(1, 2, method="adabin")


@pytest.mark.parametrize(("centre", "missing"), [(0.0, 4), (0.3, 0)])
def test_size_of_adabin_does_not_depend_on_values(tmp_path, centre, missing):
    """A file leaves a shift of zero out."""
    layers = nn.Linear(6, 6), nn.BatchNorm1d(6), nn.Linear(6, 6), nn.BatchNorm1d(6), nn.Linear(6, 2)
    model, x = nn.Sequential(*layers), torch.zeros(1, 6)
    surge.binarize_(model, "adabin")
    nn.init.constant_(model[2].method.input_centre, centre)
    file = surge.pack(model.eval(), x, tmp_path / "m.surge")
    assert surge.summary(model, x).bytes - file.tensor_bytes == missing


@pytest.mark.parametrize("row", ["cnn-adabin", "resnet20-adabin"])
def test_adabin_arms_start_with_the_same_loss(row):
    plain, surged = LOSSES[row], LOSSES[f"{row}-surge"]
    assert plain[0] == surged[0] and plain != surged


@pytest.mark.parametrize("row", ["cnn-adabin", "cnn-adabin-surge"])
def test_adabin_losses_on_digits_are_the_stored_ones(tmp_path, row):
    assert losses(f"digits-{row}", tmp_path) == pytest.approx(LOSSES[row], abs=1e-4)


@pytest.mark.slow
@pytest.mark.parametrize("row", ["resnet20-adabin", "resnet20-adabin-surge"])
@pytest.mark.parametrize("table", ["cifar10", "common"])
def test_adabin_losses_on_cifar10_are_the_stored_ones(tmp_path, cifar10_dir, table, row):
    found = losses(f"{table}-{row}", tmp_path, "--data", str(cifar10_dir))
    assert found == pytest.approx(LOSSES[row], abs=1e-4)


def test_adabin_needed_a_file_a_test_and_a_recipe():
    assert "adabin" in surge.list_methods()
    assert get_recipe("cifar10-resnet20-adabin-surge").method.name == "adabin"
    found = {
        str(path.relative_to(ROOT))
        for room in ("src", "tests")
        for path in (ROOT / room).rglob("*")
        if "__pycache__" not in path.parts
        and path.is_file()
        and b"adabin" in path.read_bytes().lower()
    }
    assert found == {
        "src/surge/methods/adabin.py",
        "src/surge/recipes/cifar10_more.py",
        "tests/methods/test_adabin.py",
    }
