"""Products in 8-bit floating point, against the exact ones."""

import pytest
import torch

from surge.compensation import eight_bits
from surge.layers.product import transposed

WHERE = ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)]


def drawn(*shape, device="cpu", seed=0):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, generator=generator).to(device)


@pytest.mark.parametrize("kind", [eight_bits.GRADIENT, eight_bits.VALUE])
def test_quantised_keeps_the_largest_and_is_close_everywhere(kind):
    x = drawn(64, 48) * 3e-5
    small, factor = eight_bits.quantised(x, kind)
    back = small.float() * factor
    step = 2.0 ** (-2 if kind is eight_bits.GRADIENT else -3) / 2
    assert back.abs().max() == pytest.approx(float(x.abs().max()), rel=1e-6)
    large = (
        x.abs() > 1e-3 * x.abs().max()
        if kind is eight_bits.GRADIENT
        else x.abs() > x.abs().max() / 64
    )
    assert ((back - x).abs()[large] <= (step + 1e-6) * x.abs()[large]).all()


def test_quantised_zeros_stay_zeros():
    small, factor = eight_bits.quantised(torch.zeros(4, 4), eight_bits.VALUE)
    assert torch.equal(small.float() * factor, torch.zeros(4, 4))


@pytest.mark.parametrize("device", WHERE)
@pytest.mark.parametrize("shape", [(3, 16, 32, 48), (1, 5, 7, 9)], ids=["tiles", "odd"])
def test_transposed_linear_is_near_the_exact_product(shape, device):
    batch, tokens, inner, outer = shape
    grad = drawn(batch, tokens, outer, device=device) * 1e-4
    x, weight = (
        drawn(batch, tokens, inner, device=device, seed=1),
        drawn(outer, inner, device=device, seed=2),
    )
    exact = transposed(grad, x, weight, (), 1, (True, True))
    found = eight_bits.transposed_linear(grad, x, weight, (True, True))
    for ours, wanted in zip(found, exact, strict=True):
        assert ours.shape == wanted.shape and ours.dtype == wanted.dtype
        assert (ours - wanted).norm() < 0.08 * wanted.norm()


def test_what_is_not_needed_is_not_made():
    grad, x, weight = drawn(4, 6), drawn(4, 5), drawn(6, 5)
    assert eight_bits.transposed_linear(grad, x, weight, (True, False))[1] is None
    assert eight_bits.transposed_linear(grad, x, weight, (False, True))[0] is None


@pytest.mark.gpu
def test_hardware_gives_what_the_plain_form_gives(monkeypatch):
    grad, x, weight = (
        drawn(64, 32, device="cuda"),
        drawn(64, 48, device="cuda"),
        drawn(32, 48, device="cuda"),
    )
    fast = eight_bits.transposed_linear(grad.bfloat16(), x, weight, (True, True))
    monkeypatch.setattr(eight_bits, "_hardware", lambda *_: False)
    slow = eight_bits.transposed_linear(grad.bfloat16(), x, weight, (True, True))
    for a, b in zip(fast, slow, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-2, atol=1e-2)
