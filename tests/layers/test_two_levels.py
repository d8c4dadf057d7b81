"""Products of factors with two levels: whole sums in evaluation, and plain gradients."""

import pytest
import torch
from torch import nn

from surge.layers import BinaryLinear
from surge.layers.attention import two_level_product
from surge.layers.elastic import initialize_


def factors(count=64, tokens=50):
    torch.manual_seed(0)
    a = 0.0310251 * (torch.rand(3, 2, count, tokens) < 0.5)
    b = 0.8953108 * torch.where(torch.rand(3, 2, tokens, 40) < 0.5, 1.0, -1.0)
    return a, b


def test_sum_of_zero_is_zero():
    a, b = factors()
    whole = (a > 0).double() @ b.sign().double()
    exact = two_level_product(a, b)
    assert (whole == 0).sum() > 100
    assert torch.equal(exact == 0, whole == 0)
    assert not torch.equal((a @ b) == 0, whole == 0), "then nothing would be gained"
    torch.testing.assert_close(exact, a @ b)


def test_gradients_are_those_of_the_plain_product():
    a, b = (x.clone().requires_grad_() for x in factors())
    weight = torch.randn(3, 2, 64, 40)
    (two_level_product(a, b) * weight).sum().backward()
    c, d = (x.clone().requires_grad_() for x in factors())
    ((c @ d) * weight).sum().backward()
    torch.testing.assert_close(a.grad, c.grad)
    torch.testing.assert_close(b.grad, d.grad)


def test_empty_and_zero_factors_are_fine():
    a, b = factors()
    assert two_level_product(a[:0], b[:0]).shape == (0, 2, 64, 40)
    assert torch.equal(two_level_product(0 * a, b), torch.zeros(3, 2, 64, 40))


@pytest.mark.parametrize("options", [{}, {"unsigned": True}])
@pytest.mark.parametrize("method", ["bit", "binarybert"])
def test_layer_with_levels_sums_whole_numbers_in_evaluation(method, options):
    torch.manual_seed(0)
    layer = BinaryLinear(50, 30, bias=False, method=method, method_options=options)
    x = torch.randn(200, 50)
    initialize_(layer, x)
    values, scale = layer.packed_weight()
    level = layer.method.level.level.detach()
    bits = layer.method.binarize(layer.method.prepare_input(x)) / level
    with torch.no_grad():
        trained, evaluated = layer.train()(x), layer.eval()(x)
        assert torch.equal(evaluated, (bits.round() @ values.T) * (scale[0] * level))
    torch.testing.assert_close(trained, evaluated)
    assert nn.functional.linear(x[:0], values).shape == layer(x[:0]).shape


def test_a_nan_stays_in_its_own_row():
    layer = BinaryLinear(8, 5, method="bit").eval()
    x = torch.randn(3, 8)
    x[1, 2] = torch.nan
    assert layer(x).isnan().any(dim=1).tolist() == [False, True, False]
