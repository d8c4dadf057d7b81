"""BONN against methods.md B9, in NumPy."""

import copy
import math

import numpy as np
import pytest
import torch
from torch import nn

import surge
from surge.errors import ConfigError
from surge.layers import BinaryLinear
from surge.methods.bonn import FeatureLoss, reconstructed_weight
from tests.methods.reference import (
    CASES,
    check_packed,
    close,
    compute,
    inside,
    make,
    per_filter_mean,
    run,
    sign,
    sign_input,
)


class Kernels:
    """The weight rule; keeps the gradient of the reconstruction vector."""

    def __init__(self, vector):
        self.vector, self.vector_grad = vector.detach().numpy(), None

    def __call__(self, k):
        passed = np.abs(self.vector * k) <= 1

        def back(g):
            self.vector_grad = (g * passed * k).sum(axis=0)
            return g * passed * self.vector

        return self.vector.mean() * sign(k), back


def kernel_loss(k, vector, strength, variance):
    """The Bayesian kernel loss with its prior at the best place, and its gradients."""
    magnitude = np.abs(k)
    mode = per_filter_mean(magnitude)
    square = np.maximum(per_filter_mean((magnitude - mode) ** 2), 1e-6)
    binary = vector.mean() * sign(k)
    missing = vector * k - binary
    log = k[0].size * np.log(square).sum()
    away = (magnitude - mode) / square
    value = (missing**2).sum() + variance * (((magnitude - mode) * away).sum() + log)
    to_k = vector * missing + variance * away * sign(k)
    return strength / 2 * value, strength * to_k, strength * (missing * k).sum(axis=0)


def prepared(case, options=None):
    layer, x = make(case, "bonn", options)
    with torch.no_grad():
        layer.method.vector.uniform_(-0.5, 1.5)
    layer.method.adapt(layer.weight)  # the weight was replaced
    return layer, x


@pytest.mark.parametrize("case", CASES)
def test_bonn_equals_numpy(case):
    layer, x = prepared(case)
    rule = Kernels(layer.method.vector)
    y, input_grad, grad = run(layer, x)
    expected = compute(
        layer, x.numpy(), grad.numpy(), weight_rule=rule, input_rule=sign_input(inside)
    )
    close(y, expected.output)
    close(layer.weight.grad, expected.weight_grad)
    close(input_grad, expected.input_grad)
    close(layer.method.vector.grad, rule.vector_grad)


@pytest.mark.parametrize("case", CASES)
def test_bonn_kernel_loss_equals_numpy(case):
    layer, x = prepared(case, {"strength": 0.5, "variance": 0.3})
    layer.method.on_epoch(0, 10)
    layer(x)
    loss = layer.method.extra_loss(layer.weight)
    loss.backward()
    k, vector = layer.weight.detach().numpy(), layer.method.vector.detach().numpy()
    value, to_k, to_vector = kernel_loss(k, vector, 0.5, 0.3)
    close(loss, value)
    close(layer.weight.grad, to_k)
    close(layer.method.vector.grad, to_vector)


def test_bonn_prior_sits_where_its_loss_is_smallest():
    layer, _ = prepared("conv")
    method, k = layer.method, layer.weight.detach()

    def prior_loss(mode, width):
        away = ((k.abs() - mode) / width).square().flatten(1).sum(1)
        return away + 2 * k[0].numel() * width.flatten().log()

    best = prior_loss(method.mode, method.width)
    for mode, width in ((1.01, 1), (0.99, 1), (1, 1.01), (1, 0.99)):
        assert (prior_loss(mode * method.mode, width * method.width) > best).all()


def test_bonn_prior_follows_the_weight_after_every_step():
    layer, _ = prepared("conv")
    held = layer.method.mode
    with torch.no_grad():
        layer.weight *= 3
    before = held.clone()
    layer.method.on_step(layer.weight)
    torch.testing.assert_close(held, 3 * before)
    assert held is layer.method.mode


def test_bonn_loss_waits_for_the_first_epoch_and_is_summed_over_layers():
    net = nn.Sequential(*(BinaryLinear(6, 6, method="bonn") for _ in range(2)))
    net(torch.randn(3, 6))
    assert surge.extra_loss(net) == 0
    surge.on_epoch(net, 0, 10)
    net(torch.randn(3, 6))
    terms = [layer.method.extra_loss(layer.weight) for layer in net]
    torch.testing.assert_close(surge.extra_loss(net), terms[0] + terms[1])
    assert net[0].method.active_strength == pytest.approx(1e-4)
    assert surge.extra_loss(net.eval()) == 0


def test_bonn_can_be_copied_between_forward_and_backward():
    layer, x = prepared("conv")
    layer(x)
    twin = copy.deepcopy(layer)
    close(twin.method.extra_loss(twin.weight), layer.method.extra_loss(layer.weight))


def test_bonn_constant_filter_has_a_finite_loss():
    layer = BinaryLinear(6, 5, method="bonn")
    nn.init.constant_(layer.weight, 0.0)
    surge.on_epoch(layer, 0, 10)
    layer(torch.randn(3, 6))
    loss = layer.method.extra_loss(layer.weight)
    loss.backward()
    assert loss.isfinite() and layer.weight.grad.isfinite().all()
    assert layer.method.width.min().item() == pytest.approx(1e-3)


@pytest.mark.parametrize("case", CASES)
def test_bonn_packed_weight_reproduces_the_layer(case):
    def prepare(layer):
        with torch.no_grad():
            layer.method.vector.uniform_(-1.5, 0.5)

    layer, values, scale = check_packed(case, "bonn", prepare=prepare)
    assert torch.equal(values, torch.where(layer.weight >= 0, 1.0, -1.0))
    torch.testing.assert_close(scale, layer.method.vector.detach().mean().expand(len(scale)))
    assert set(layer.method.state_dict()) == set(layer.method.dropped)  # its mean is the scale


def test_bonn_vector_has_the_shape_of_a_filter_and_starts_at_the_mean_magnitude():
    method = prepared("conv")[0].method
    assert method.vector.shape == (4, 3, 3)
    layer = BinaryLinear(6, 5, method="bonn")
    assert layer.method.vector.eq(layer.weight.abs().mean()).all()


def test_bonn_element_below_zero_turns_the_gradient_of_its_weights_around():
    layer = BinaryLinear(3, 2, bias=False, method="bonn")
    with torch.no_grad():
        layer.weight.fill_(0.01)
        layer.method.vector.copy_(torch.tensor([0.5, -0.2, 0.6]))
    optimizer = torch.optim.SGD(layer.parameters(), lr=1.0)
    layer(torch.ones(1, 3)).sum().backward()  # falls with every weight that turns negative
    torch.testing.assert_close(layer.weight.grad, layer.method.vector.detach().expand(2, 3))
    optimizer.step()
    assert layer.packed_weight()[0].tolist() == [[-1, 1, -1]] * 2
    assert layer.weight[:, 1].gt(0.2).all()  # further up, against what the loss asks for


def test_bonn_elements_learn_one_by_one_and_may_turn_negative():
    layer = BinaryLinear(3, 2, bias=False, method="bonn")
    with torch.no_grad():
        layer.weight.copy_(torch.tensor([[0.3, 0.3, -0.3], [0.3, -0.3, -0.3]]))
        layer.method.vector.fill_(0.1)
    optimizer = torch.optim.SGD([layer.method.vector], lr=1.0)
    layer(torch.ones(1, 3)).sum().backward()
    optimizer.step()
    layer.method.on_step(layer.weight)
    torch.testing.assert_close(layer.method.vector.detach(), torch.tensor([-0.5, 0.1, 0.7]))


@pytest.mark.parametrize(("options", "flips"), [({}, True), ({"variance": 1.0}, False)])
def test_bonn_signs_flip_under_the_default_prior_and_freeze_under_a_strong_one(options, flips):
    layer = BinaryLinear(64, 8, bias=False, method="bonn", method_options=options)
    layer.method.on_epoch(0, 1)
    optimizer = torch.optim.SGD([layer.weight], lr=10.0)
    positive = layer.weight > 0
    for _ in range(30):
        optimizer.zero_grad()
        task = 0.01 * layer.method.binarize_weight(layer.weight).sum()
        (task + layer.method.extra_loss(layer.weight)).backward()
        optimizer.step()
    assert bool((layer.weight[positive] < 0).all()) is flips
    assert bool((layer.weight[positive] > 0).all()) is not flips
    assert layer.weight[~positive].lt(0).all()


@pytest.mark.parametrize("options", [{"strength": -1.0}, {"variance": -0.1}])
def test_bonn_rejects_bad_options(options):
    with pytest.raises(ConfigError, match="strength=.*variance="):
        BinaryLinear(4, 2, method="bonn", method_options=options)


def test_weight_gradient_passes_up_to_the_edge():
    kernel = torch.tensor([[2.0], [-2.0], [2.5]], requires_grad=True)
    reconstructed_weight(kernel, torch.tensor([0.5])).sum().backward()
    assert kernel.grad.tolist() == [[0.5], [0.5], [0.0]]


def test_bonn_operator_passes_opcheck():
    kernel, vector = torch.randn(3, 2, 2), torch.rand(2, 2)
    torch.library.opcheck(reconstructed_weight, (kernel.requires_grad_(), vector.requires_grad_()))


def test_feature_loss_equals_numpy():
    torch.manual_seed(1)
    criterion = FeatureLoss(4, 4, strength=0.7)  # class 3 has no feature in this batch
    nn.init.normal_(criterion.centre)
    nn.init.normal_(criterion.log_variance)
    features, labels = torch.randn(6, 4, requires_grad=True), torch.tensor([0, 2, 1, 1, 0, 1])
    loss = criterion(features, labels)
    loss.backward()
    f, c = features.detach().numpy(), criterion.centre.detach().numpy()[labels]
    square = np.exp(criterion.log_variance.detach().numpy()[labels])
    of_class = np.eye(4, dtype=f.dtype)[labels].T
    value = ((f - c) ** 2 + (f - c) ** 2 / square + np.log(square)).sum(axis=1).mean()
    assert loss.item() == pytest.approx(0.35 * value, rel=1e-5)
    to_features = 0.7 / 6 * (f - c) * (1 + 1 / square)
    to_log_variance = 0.35 / 6 * (1 - (f - c) ** 2 / square)
    close(features.grad, to_features.astype(float), 1e-6)
    close(criterion.centre.grad, -(of_class @ to_features).astype(float), 1e-6)
    close(criterion.log_variance.grad, (of_class @ to_log_variance).astype(float), 1e-6)


def test_feature_loss_starts_with_centres_at_zero_and_widths_of_one():
    f = torch.randn(5, 3)
    loss = FeatureLoss(2, 3, strength=0.5)(f, torch.tensor([0, 1, 1, 0, 1]))
    assert loss.item() == pytest.approx(0.5 * f.square().sum(dim=1).mean().item(), rel=1e-5)


def test_feature_loss_draws_features_to_the_centre_of_their_class():
    criterion = FeatureLoss(2, 2, strength=1.0)
    features = torch.tensor([[3.0, 0.0], [0.0, 3.0]], requires_grad=True)
    optimizer = torch.optim.SGD([features, *criterion.parameters()], lr=0.1)
    before = criterion(features, torch.tensor([0, 1])).item()
    for _ in range(50):
        optimizer.zero_grad()
        loss = criterion(features, torch.tensor([0, 1]))
        loss.backward()
        optimizer.step()
    assert math.isfinite(loss.item()) and loss.item() < before
    assert (features - criterion.centre).abs().max() < 0.2
