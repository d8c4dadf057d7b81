"""Products in 8-bit floating point, against the exact ones."""

import pytest
import torch

import surge
from surge.layers import BinaryLinear, eight_bits
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


@pytest.fixture
def in_eight_bits(monkeypatch):
    """Let layers multiply binary factors in 8 bits; on a CPU their plain form is computed."""
    monkeypatch.setattr(eight_bits, "fits", lambda x, weight: True)


def trained(layer, x):
    """Return the output, and all gradients, of one forward and backward."""
    x = x.clone().requires_grad_()
    y = layer(x)
    layer.zero_grad()
    y.backward(drawn(*y.shape, device=x.device, seed=5).to(y.dtype))
    return [y.detach(), x.grad, *(p.grad for p in layer.parameters())]


@pytest.mark.parametrize("device", WHERE)
@pytest.mark.parametrize("unsigned", [False, True], ids=["signed", "unsigned"])
@pytest.mark.parametrize("method", ["bit", "binarybert"])
def test_binary_product_in_8_bits_is_the_exact_one(method, unsigned, device, in_eight_bits):
    torch.manual_seed(0)
    layer = BinaryLinear(64, 32, method=method, method_options={"unsigned": unsigned}).to(device)
    x = drawn(4, 16, 64, device=device, seed=3)
    surge.initialize_(layer, x)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(eight_bits, "fits", lambda x, weight: False)
        wanted = trained(layer, x)
    found = trained(layer, x)
    worth = layer.method.unit_worth(layer.weight)
    sums = (found[0] - layer.bias.detach()) / (worth[0] * worth[1])
    assert torch.allclose(sums, sums.round(), atol=1e-3) and sums.abs().max() > 4
    assert len(found) == len(wanted)
    for ours, exact in zip(found, wanted, strict=True):
        assert ours.dtype == exact.dtype
        torch.testing.assert_close(ours, exact, rtol=1e-5, atol=1e-5)


def test_binary_product_in_8_bits_keeps_one_byte_of_each_input(in_eight_bits):
    layer = BinaryLinear(64, 32, method="bit")
    kept = []
    with torch.autograd.graph.saved_tensors_hooks(lambda t: kept.append(t) or t, lambda t: t):
        layer(drawn(4, 16, 64).requires_grad_())
    sizes = [t.element_size() for t in kept if t.shape == (4, 16, 64)]
    # The rule of the input keeps z itself.
    assert sorted(sizes) == [1, 4]


def test_ternary_weights_and_evaluation_take_the_plain_product(in_eight_bits, monkeypatch):
    monkeypatch.setattr(eight_bits, "signs_linear", lambda *_: pytest.fail("not for these"))
    x = drawn(4, 16, 64)
    BinaryLinear(64, 32, method="binarybert", method_options={"ternary": True})(x)
    BinaryLinear(64, 32, method="bit").eval()(x)
    BinaryLinear(64, 32, method="bnn")(x)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_compiled_binary_product_in_8_bits_is_the_eager_one(dtype, in_eight_bits):
    torch.manual_seed(0)
    layer = BinaryLinear(64, 32, method="bit")
    x = drawn(4, 16, 64, seed=3)
    surge.initialize_(layer, x)

    def loss(x):
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=dtype != torch.float32):
            return layer(x).float().square().sum()

    results = []
    for function in (loss, torch.compile(loss, fullgraph=True, backend="aot_eager")):
        layer.zero_grad()
        value = function(x)
        value.backward()
        results.append([value.detach(), layer.weight.grad, layer.method.level.level.grad])
    for ours, wanted in zip(*results, strict=True):
        torch.testing.assert_close(ours, wanted)


def test_8_bits_are_for_hardware_that_has_them():
    x, weight = drawn(4, 16, 64), drawn(32, 64)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(eight_bits, "BINARY", True)
        assert not eight_bits.fits(x, weight) and not eight_bits.fits(x[:0], weight)
