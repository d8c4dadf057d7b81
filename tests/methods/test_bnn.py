"""BNN against methods.md B1, in NumPy."""

import pytest
import torch

from surge.errors import ConfigError
from surge.layers import BinaryLinear
from tests.methods.reference import CASES, check, check_packed, inside, sign, sign_input


def weight_rule(w):
    return sign(w), lambda g: g


@pytest.mark.parametrize("case", CASES)
def test_bnn_equals_numpy(case):
    check(case, "bnn", weight_rule=weight_rule, input_rule=sign_input(inside))


def test_bnn_input_gradient_passes_at_exactly_one():
    layer = BinaryLinear(4, 1, bias=False, method="bnn")
    torch.nn.init.ones_(layer.weight)
    above = torch.nextafter(torch.tensor(1.0), torch.tensor(2.0)).item()
    x = torch.tensor([[-1.0, 1.0, above, -above]], requires_grad=True)
    layer(x).sum().backward()
    assert x.grad.tolist() == [[1, 1, 0, 0]]
    assert layer.method.surrogate_is_zero(x).tolist() == [[False, False, True, True]]


def test_bnn_step_clamps_the_latent_weight_in_place():
    layer = BinaryLinear(3, 1, method="bnn")
    with torch.no_grad():
        layer.weight.copy_(torch.tensor([[-1.5, 0.25, 7.0]]))
    before = layer.weight.data_ptr()
    layer.method.on_step(layer.weight)
    assert layer.weight.tolist() == [[-1, 0.25, 1]]
    assert layer.weight.data_ptr() == before
    assert layer.weight.is_leaf and layer.weight.requires_grad


@pytest.mark.parametrize("case", CASES)
def test_bnn_packed_weight_reproduces_the_layer(case):
    _, values, scale = check_packed(case, "bnn")
    assert set(values.unique().tolist()) == {-1, 1}
    assert scale.eq(1).all()


def test_bnn_epoch_changes_nothing():
    layer = BinaryLinear(3, 2, method="bnn")
    layer.method.on_epoch(3, 10)
    assert not layer.method.state_dict()


def test_bnn_sign_is_never_drawn_at_random():
    with pytest.raises(ConfigError, match='has no option "stochastic"'):
        BinaryLinear(3, 2, method="bnn", method_options={"stochastic": True})
    layer, x = BinaryLinear(64, 8, method="bnn").train(), 0.1 * torch.randn(16, 64)
    before = torch.get_rng_state()
    assert torch.equal(layer(x), layer(x))
    assert torch.equal(torch.get_rng_state(), before)
