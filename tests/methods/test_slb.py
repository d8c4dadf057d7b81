"""SLB against methods.md B14, in NumPy."""

import math

import numpy as np
import pytest
import torch

import surge
from surge.errors import ConfigError
from surge.layers import BinaryLinear
from surge.layers.hooks import binary_layers
from surge.models import build_model
from tests.methods.reference import (
    CASES,
    check_packed,
    close,
    compute,
    inside,
    make,
    run,
    sign,
    sign_input,
)


def softmax_rule(temperature):
    """The expected weight of two logits whose difference is sqrt(2) L, and its gradient to L."""

    def rule(latent):
        logits = temperature * math.sqrt(2) * latent  # T (A+ - A-)
        plus = 1 / (1 + np.exp(-logits))
        return plus - (1 - plus), lambda g: g * 2 * plus * (1 - plus) * temperature * math.sqrt(2)

    return rule


@pytest.mark.parametrize("epoch", [None, 0, 220, 240])
@pytest.mark.parametrize("case", CASES)
def test_slb_equals_numpy_while_searching(case, epoch):
    layer, x = make(case, "slb", {"factor": 1.01})
    if epoch is not None:
        layer.method.on_epoch(epoch, 500)
    temperature = 1.01 ** max(0, (epoch or 0) - 200)
    y, input_grad, grad = run(layer, x)
    expected = compute(
        layer,
        x.numpy(),
        grad.numpy(),
        weight_rule=softmax_rule(temperature),
        input_rule=sign_input(inside),
    )
    close(y, expected.output, 1e-9)
    close(layer.weight.grad, expected.weight_grad, 1e-9)
    close(input_grad, expected.input_grad, 1e-9)


@pytest.mark.parametrize("case", CASES)
def test_slb_equals_numpy_after_the_search(case):
    layer, x = make(case, "slb")
    layer.method.on_epoch(90, 100)
    y, input_grad, grad = run(layer, x)
    expected = compute(
        layer,
        x.numpy(),
        grad.numpy(),
        weight_rule=lambda w: (sign(w), np.zeros_like),
        input_rule=sign_input(inside),
    )
    close(y, expected.output)
    close(input_grad, expected.input_grad)
    assert not layer.weight.grad.any()  # the choice is made


@pytest.mark.parametrize(
    ("start", "epoch", "temperature", "discrete"),
    [
        (0.4, 0, 1, False),
        (0.4, 200, 1, False),
        (0.4, 201, 1.03, False),
        (0.4, 300, 1.03**100, False),
        (0.4, 449, 1.03**249, False),
        (0.4, 450, 1.03**250, True),
        (0.4, 499, 1.03**250, True),
        (0.3, 150, 1, False),
        (0.3, 449, 1.03**299, False),
    ],
)
def test_slb_schedule_at_named_epochs(start, epoch, temperature, discrete):
    layer = BinaryLinear(4, 2, method="slb", method_options={"start": start})
    held = layer.method.temperature
    layer.method.on_epoch(epoch, 500)
    assert held is layer.method.temperature
    assert held.item() == pytest.approx(temperature, rel=1e-5)
    assert bool(layer.method.discrete) is discrete


def test_slb_ends_as_hard_after_a_short_run_as_after_a_long_one():
    method = BinaryLinear(4, 2, method="slb").method
    ends = []
    for epochs in (60, 500):
        method.on_epoch(int(0.9 * epochs), epochs)
        ends.append(method.temperature.item())
    assert ends == pytest.approx([1.03**250] * 2, rel=1e-4)


def test_slb_latent_learns_as_the_pair_of_logits_does():
    """SGD with momentum and weight decay on L is that on (A+, A-), step by step."""
    torch.manual_seed(1)
    pair = torch.randn(2, 5, 6, dtype=torch.double).requires_grad_()
    layer = BinaryLinear(6, 5, bias=False, method="slb", dtype=torch.double)
    with torch.no_grad():
        layer.weight.copy_((pair[0] - pair[1]) / math.sqrt(2))
    settings = {"lr": 0.3, "momentum": 0.9, "weight_decay": 0.01}
    optimizers = [torch.optim.SGD(p, **settings) for p in ([pair], layer.parameters())]
    for step in range(20):
        layer.method.on_epoch(195 + step, 500)
        temperature = float(layer.method.temperature)
        x, target = torch.randn(7, 6).double(), torch.randn(7, 5).double()
        for optimizer in optimizers:
            optimizer.zero_grad()
        probability = torch.softmax(temperature * pair, dim=0)
        y = torch.where(x >= 0, 1.0, -1.0).double() @ (probability[0] - probability[1]).T
        (y - target).square().mean().backward()
        (layer(x) - target).square().mean().backward()
        for optimizer in optimizers:
            optimizer.step()
    torch.testing.assert_close((pair[0] - pair[1]).detach() / math.sqrt(2), layer.weight.detach())


def test_slb_evaluates_the_more_likely_weight_with_the_soft_gradient():
    layer, x = make("conv", "slb")
    layer.eval()
    y, _, grad = run(layer, x)
    expected = compute(
        layer,
        x.numpy(),
        grad.numpy(),
        weight_rule=lambda w: (sign(w), softmax_rule(1.0)(w)[1]),
        input_rule=sign_input(inside),
    )
    close(y, expected.output)
    close(layer.weight.grad, expected.weight_grad, 1e-9)


def test_slb_hardens_without_recompiling():
    torch._dynamo.reset()
    layer, x = BinaryLinear(6, 5, method="slb"), torch.randn(4, 6)
    compiled = torch.compile(layer, backend="aot_eager", fullgraph=True)
    soft = compiled(x)
    layer.method.on_epoch(9, 10)
    with torch.compiler.set_stance("fail_on_recompile"):
        hard = compiled(x)
    torch.testing.assert_close(hard, layer.eval()(x))
    assert not torch.allclose(soft, hard)


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("case", CASES)
def test_slb_packed_weight_reproduces_the_evaluated_layer(case, training):
    layer, values, scale = check_packed(case, "slb", prepare=lambda layer: layer.train(training))
    assert torch.equal(values, torch.where(layer.weight >= 0, 1.0, -1.0)) and scale.eq(1).all()
    assert torch.equal(layer.train().packed_weight()[0], values)
    assert set(layer.method.state_dict()) == set(layer.method.dropped)


def test_slb_has_no_parameter_of_its_own_and_asks_for_recalibrated_norms():
    layer = BinaryLinear(4, 2, method="slb")
    assert [name for name, _ in layer.named_parameters()] == ["weight", "bias"]
    assert layer.method.recalibrates_norms


@pytest.mark.parametrize("options", [{"factor": 1}, {"start": 0}, {"start": 0.9}, {"end": 1}])
def test_slb_accepts_the_ends_of_what_is_allowed(options):
    BinaryLinear(4, 2, method="slb", method_options=options)


@pytest.mark.parametrize(
    "options", [{"factor": 0.9}, {"start": 0.95}, {"end": 1.1}, {"start": -0.1}]
)
def test_slb_rejects_a_bad_schedule(options):
    with pytest.raises(ConfigError, match="factor=.*start=.*end="):
        BinaryLinear(4, 2, method="slb", method_options=options)


@pytest.mark.parametrize(("model", "fan"), [("resnet20", "in"), ("vgg_small", "out")])
def test_slb_logits_are_drawn_by_the_networks_initialiser(model, fan):
    torch.manual_seed(3)
    plain = build_model(model).state_dict()
    torch.manual_seed(3)
    net = build_model(model)
    surge.binarize_(net, "slb")
    for name, layer in binary_layers(net):
        assert torch.equal(layer.weight, plain[f"{name}.weight"])
        if layer.in_channels != layer.out_channels:  # where fans differ
            count = 9 * (layer.in_channels if fan == "in" else layer.out_channels)
            assert layer.weight.std().item() == pytest.approx(math.sqrt(2 / count), rel=0.05)
