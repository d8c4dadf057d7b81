"""ReActNet against methods.md B5, in NumPy."""

import numpy as np
import pytest
import torch

from surge.layers import BinaryConv2d, BinaryEmbedding, BinaryLinear, RSign
from tests.methods.reference import (
    CASES,
    check,
    check_packed,
    close,
    compute,
    inside,
    make,
    per_filter_mean,
    run,
    sign,
    sign_input,
    triangle,
)


def weight_rule(w):
    return per_filter_mean(np.abs(w)) * sign(w), lambda g: g * inside(w)


def along(shift, x):
    """One value per channel: dimension 1 of images, the last of vectors."""
    return shift.reshape(-1, 1, 1) if x.ndim == 4 else shift


@pytest.mark.parametrize("case", CASES)
def test_reactnet_equals_bireal_at_the_start(case):
    check(case, "reactnet", weight_rule=weight_rule, input_rule=sign_input(triangle))


@pytest.mark.parametrize("case", CASES)
def test_reactnet_shifted_equals_numpy(case):
    layer, x = make(case, "reactnet")
    torch.nn.init.normal_(layer.method.shift, std=0.5)
    y, input_grad, grad = run(layer, x)
    shift = layer.method.shift.detach().numpy()
    expected = compute(
        layer,
        x.numpy() + along(shift, x),
        grad.numpy(),
        weight_rule=weight_rule,
        input_rule=sign_input(triangle),
    )
    close(y, expected.output)
    close(layer.weight.grad, expected.weight_grad)
    close(input_grad, expected.input_grad)
    others = (0, 2, 3) if x.ndim == 4 else (0,)
    close(layer.method.shift.grad, expected.input_grad.sum(axis=others))


def test_reactnet_magnitude_aware_multiplies_the_weight_gradient():
    plain, x = make("linear", "reactnet")
    aware, _ = make("linear", "reactnet", {"magnitude_aware": True})
    aware.load_state_dict(plain.state_dict())
    run(plain, x)
    run(aware, x)
    alpha = plain.weight.detach().abs().mean(1, keepdim=True)
    close(aware.weight.grad, (plain.weight.grad * alpha).numpy())


def test_reactnet_prepares_what_rsign_binarises():
    layer = BinaryConv2d(4, 4, 3, method="reactnet")
    rsign, x = RSign(4), torch.randn(2, 4, 5, 5)
    with torch.no_grad():
        layer.method.shift.normal_()
        rsign.shift.copy_(layer.method.shift)
    assert torch.equal(layer.method.binarize(layer.method.prepare_input(x)), rsign(x))


def test_reactnet_mask_is_taken_after_the_shift():
    layer = BinaryLinear(2, 1, method="reactnet")
    torch.nn.init.constant_(layer.method.shift, 0.75)
    z = layer.method.prepare_input(torch.tensor([[0.5, -1.5]]))
    assert layer.method.surrogate_is_zero(z).tolist() == [[True, False]]


@pytest.mark.parametrize("case", CASES)
def test_reactnet_packed_weight_reproduces_the_layer(case):
    shift = torch.linspace(-0.5, 0.5, 6 if case == "linear" else 4)

    def prepare(layer):
        with torch.no_grad():
            layer.method.shift.copy_(shift)

    def input_rule(x):
        return sign(x + along(shift.double().numpy(), x)), None

    check_packed(case, "reactnet", input_rule=input_rule, prepare=prepare)


def test_reactnet_embedding_has_no_shift():
    layer = BinaryEmbedding(5, 3, method="reactnet")
    assert set(layer.state_dict()) == {"weight"}
    x = torch.randn(2, 3)
    assert layer.method.prepare_input(x) is x
    assert layer(torch.tensor([1, 4])).shape == (2, 3)


def test_reactnet_with_real_weights_is_a_plain_layer_on_signs():
    layer, x = make("conv", "reactnet", {"real_weights": True})
    torch.nn.init.normal_(layer.method.shift, std=0.5)
    y, _, grad = run(layer, x)
    signs = torch.where(x + layer.method.shift.detach().view(-1, 1, 1) >= 0, 1.0, -1.0)
    weight = layer.weight.detach().clone().requires_grad_()
    expected = layer.multiply(signs.to(weight.dtype), weight)
    torch.autograd.backward(expected, grad)
    torch.testing.assert_close(y.detach(), expected.detach())
    torch.testing.assert_close(layer.weight.grad, weight.grad)
    assert layer.method.bits == (32, 1)
    values, scale = layer.packed_weight()
    assert torch.equal(values, layer.weight.detach()) and bool((scale == 1).all())
