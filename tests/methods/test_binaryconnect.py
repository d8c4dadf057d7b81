"""BinaryConnect against methods.md B15, in NumPy."""

import pytest
import torch
from torch import nn

import surge
from surge.errors import NoLayersMatchedError
from surge.layers import BinaryLinear
from surge.recipes import TrainSpec
from surge.train.build import make_optimizer
from tests.methods.reference import CASES, check, check_packed, make, run, sign


def real(x):
    return x, lambda g: g


def weight_rule(w):
    return sign(w), lambda g: g


@pytest.mark.parametrize("case", CASES)
def test_binaryconnect_equals_numpy(case):
    check(case, "binaryconnect", weight_rule=weight_rule, input_rule=real)


def test_binaryconnect_draws_weights_with_the_hard_sigmoid():
    layer = BinaryLinear(6, 1, method="binaryconnect", method_options={"stochastic": True})
    latent = torch.tensor([[-1.5, -1.0, -0.5, 0.0, 0.6, 1.2]])
    with torch.no_grad():
        layer.weight.copy_(latent)
        drawn = torch.stack([layer.method.binarize_weight(layer.weight) for _ in range(4000)])
    assert set(drawn.unique().tolist()) == {-1.0, 1.0}
    share = (drawn > 0).float().mean(dim=0)
    torch.testing.assert_close(share, ((latent + 1) / 2).clamp(0, 1), atol=0.03, rtol=0)


def test_binaryconnect_draws_only_while_training_and_passes_the_gradient():
    layer, x = make("conv", "binaryconnect", {"stochastic": True})
    layer.zero_grad()
    layer.method.binarize_weight(layer.weight).sum().backward()
    assert layer.weight.grad.eq(1).all()
    layer.eval()
    assert torch.equal(layer(x), layer(x))
    assert torch.equal(layer.packed_weight()[0], layer.train().packed_weight()[0])


def test_binaryconnect_clamps_latent_weights_after_a_step():
    layer = BinaryLinear(4, 2, method="binaryconnect")
    nn.init.constant_(layer.weight, -3.0)
    layer.method.on_step(layer.weight)
    assert layer.weight.eq(-1).all()


def test_binaryconnect_layers_of_all_shapes_learn_at_one_rate():
    shapes = ((4, 5), (5, 895))  # whose coefficients, as sqrt(in + out), are ten apart
    net = nn.Sequential(*(BinaryLinear(*shape, method="binaryconnect") for shape in shapes))
    spec = TrainSpec(lr=0.5, momentum=0.0, weight_decay=0.0)
    optimizer = make_optimizer(net, spec, torch.device("cpu"))
    before = [layer.weight.detach().clone() for layer in net]
    net(torch.randn(8, 4)).square().mean().backward()
    optimizer.step()
    for layer, old in zip(net, before, strict=True):
        assert layer.weight.grad.any()
        torch.testing.assert_close(layer.weight.detach(), old - 0.5 * layer.weight.grad)


def test_binaryconnect_has_the_true_input_gradient():
    layer, x = make("linear", "binaryconnect")
    _, input_grad, grad = run(layer, 100 * x)
    torch.testing.assert_close(
        input_grad, grad @ torch.where(layer.weight >= 0, 1.0, -1.0).double()
    )
    assert not layer.method.surrogate_is_zero(100 * x).any()


def test_binaryconnect_refuses_compensation_with_the_reason():
    layer = BinaryLinear(4, 2, method="binaryconnect")
    with pytest.raises(
        NoLayersMatchedError, match="its inputs are real, so their gradient is exact"
    ):
        surge.compensate_(layer)
    assert layer.auxiliary is None
    mixed = nn.Sequential(layer, BinaryLinear(2, 2))
    assert list(surge.compensate_(mixed).skipped) == ["0"]


@pytest.mark.parametrize("case", CASES)
def test_binaryconnect_packed_weight_reproduces_the_layer(case):
    layer, values, scale = check_packed(case, "binaryconnect", input_rule=real)
    assert torch.equal(values, torch.where(layer.weight >= 0, 1.0, -1.0)) and scale.eq(1).all()
    assert layer.method.bits == (1, 32)
