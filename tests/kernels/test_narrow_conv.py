"""The narrow convolution's kernels against plain torch: on a GPU, else in Triton's interpreter."""

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

import surge
from surge import functional
from surge.kernels import fused
from surge.kernels import narrow_conv as kernels

GPU = torch.cuda.is_available()
DEVICE = torch.device("cuda" if GPU else "cpu")
DTYPES = (torch.bfloat16, torch.float16) if GPU else (torch.float16, torch.float32)
TOLERANCE = {torch.bfloat16: 4e-3, torch.float16: 1e-3, torch.float32: 1e-6}
"""Of a result in that dtype, as a share of its norm."""

EVERYWHERE = [pytest.param("any", marks=pytest.mark.gpu) if GPU else "any"]
on_this_machine = pytest.mark.parametrize("_", EVERYWHERE)
"""Marks a test as a GPU test where there is one; in CI it runs in the interpreter."""


@pytest.fixture(autouse=True, scope="module")
def few_programs():
    """Let a program add up many weights in the interpreter, which does one after the other."""
    with pytest.MonkeyPatch.context() as patch:
        if not GPU:
            patch.setitem(kernels.ADDED, "BLOCK", 4096)
        yield


def relative(value, expected):
    return float((value.double() - expected.double()).norm() / expected.double().norm())


def tensors(seed, batch, inputs, outputs, height, width, dtype):
    generator = torch.Generator().manual_seed(seed)

    def draw(*shape):
        return torch.randn(shape, generator=generator)

    z = draw(batch, inputs, height, width)
    z.flatten()[:: z.numel() // 3 + 1] = 0.0
    values = {
        "z": z.to(dtype).to(memory_format=torch.channels_last),
        "grad": draw(batch, outputs, height, width).to(dtype).to(memory_format=torch.channels_last),
        "main": functional.sign(draw(outputs, inputs, 3, 3)),
        "auxiliary": draw(outputs, inputs, 3, 3).to(dtype).float(),
        "alpha": torch.rand(outputs, generator=generator) + 0.5,
        "scale": torch.tensor(0.37),
    }
    return {name: value.to(DEVICE) for name, value in values.items()}


shapes = st.tuples(
    st.integers(0, 99),
    st.integers(1, 5),
    st.sampled_from(fused.WIDTHS),
    st.sampled_from(fused.WIDTHS),
    st.integers(1, 9),
    st.integers(1, 9),
    st.sampled_from(DTYPES),
)


@on_this_machine
@settings(deadline=None, max_examples=40 if GPU else 12)
@given(shapes)
def test_forward_is_exact_but_for_the_last_rounding(_, shape):
    t = tensors(*shape)
    y = kernels.forward(t["z"], t["main"], t["alpha"])
    sums = F.conv2d(functional.sign(t["z"]).double(), t["main"].double(), padding=1)
    # The stock convolution of wider layers rounds the sums, then the product.
    narrow = max(shape[2:4]) == 16
    expected = (sums.float() if narrow else sums.to(shape[-1])) * t["alpha"].view(-1, 1, 1)
    assert y.dtype == shape[-1]
    if narrow:
        assert torch.equal(y, expected.to(shape[-1]))
    assert relative(y, expected) < 2 * TOLERANCE[shape[-1]]


@on_this_machine
@settings(deadline=None, max_examples=40 if GPU else 12)
@given(shapes, st.sampled_from(sorted(fused.SURROGATES)))
def test_input_gradient_and_norms(_, shape, surrogate):
    t = tensors(*shape)
    code = fused.SURROGATES[surrogate]
    z, grad = t["z"].double(), t["grad"].double()
    factor = (z.abs() <= 1) if surrogate == "clipped" else (2 - 2 * z.abs()).clamp(min=0)
    g_b = F.conv_transpose2d(grad, t["main"].double(), padding=1) * factor
    g_a = F.conv_transpose2d(grad, t["auxiliary"].double(), padding=1)
    plain, _norms = kernels.input_gradient(t["grad"], t["z"], t["main"], None, None, code)
    assert (plain.double() - g_b).norm() <= TOLERANCE[shape[-1]] * max(g_b.norm(), 1e-3)
    both, squares = kernels.input_gradient(
        t["grad"], t["z"], t["main"], t["auxiliary"], t["scale"], code
    )
    assert relative(both, g_b + t["scale"].double() * g_a) < TOLERANCE[shape[-1]]
    expected = torch.stack([g_b.square().sum(), g_a.square().sum()])
    assert torch.allclose(squares.double(), expected, rtol=1e-5, atol=1e-6)


@on_this_machine
@settings(deadline=None, max_examples=40 if GPU else 12)
@given(shapes)
def test_both_weight_gradients(_, shape):
    check_weight_gradients(shape)


@on_this_machine
@pytest.mark.parametrize("width", fused.WIDTHS)
@pytest.mark.parametrize("columns", [8, 9])
def test_weight_gradients_of_many_blocks_and_parts(_, monkeypatch, width, columns):
    """A program takes several blocks of pixels, and the sum several rounds of parts."""
    monkeypatch.setattr(kernels, "CHUNKS", dict.fromkeys(fused.WIDTHS, 3))
    monkeypatch.setattr(kernels, "ADDED", {**kernels.ADDED, "ROWS": 2})
    check_weight_gradients((0, 4, width, 16, 9, columns, DTYPES[0]))


def check_weight_gradients(shape):
    t = tensors(*shape)
    z, grad, size = t["z"].double(), t["grad"].double(), t["main"].shape
    expected = [nn.grad.conv2d_weight(x, size, grad, padding=1) for x in (functional.sign(z), z)]
    both = kernels.weight_gradient(t["grad"], t["z"], True)
    for value, reference in zip(both, expected, strict=True):
        assert (value.double() - reference).norm() <= 1e-5 * max(reference.norm(), 1.0)
    alone = kernels.weight_gradient(t["grad"], t["z"], False)
    assert torch.equal(alone[0], both[0])


def network(method, **options):
    torch.manual_seed(3)
    net = nn.Sequential(
        nn.Conv2d(3, 16, 3, padding=1, bias=False),
        nn.BatchNorm2d(16),
        nn.Conv2d(16, 16, 3, padding=1, bias=False),
        nn.BatchNorm2d(16),
        nn.Conv2d(16, 32, 3, padding=1, bias=False),
        nn.BatchNorm2d(32),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(32, 4),
    ).to(memory_format=torch.channels_last)
    surge.binarize_(net, method)
    compensation = surge.compensate_(net, **options) if options else None
    return net.to(DEVICE), compensation


def gradients(monkeypatch, *, fuses, method, **options):
    net, compensation = network(method, **options)
    x = torch.randn(4, 3, 7, 7, generator=torch.Generator().manual_seed(5)).to(DEVICE)
    with monkeypatch.context() as patch:
        taken = fuses and not GPU
        patch.setattr(fused, "fits", (lambda *_: True) if taken else fused.fits)
        patch.setattr(fused, "AVAILABLE", fuses)
        patch.setattr(fused, "compiled", lambda: True)
        with torch.autocast(DEVICE.type, torch.bfloat16, enabled=GPU):
            y = net(x.to(memory_format=torch.channels_last))
        F.cross_entropy(y.float(), torch.arange(4, device=DEVICE)).backward()
    found = {name: p.grad for name, p in net.named_parameters()}
    if compensation is not None:
        for name, path in compensation.paths.items():
            found |= {f"{name} {k}": path.squares(k) for k in ("main", "auxiliary")}
    return found


@on_this_machine
@pytest.mark.parametrize("method", ["bnn", "recu"])
@pytest.mark.parametrize("options", [{}, {"eta": 0.3}, {"auxiliary": "tied", "eta": 0.3}])
def test_network_has_the_same_gradients(_, monkeypatch, method, options):
    expected = gradients(monkeypatch, fuses=False, method=method, **options)
    found = gradients(monkeypatch, fuses=True, method=method, **options)
    assert found.keys() == expected.keys()
    for name, value in found.items():
        # A factor in front of a BatchNorm has no gradient but rounding: hence the floor.
        size = max(float(expected[name].norm()), 0.05)
        error = float((value - expected[name]).norm())
        assert error < (0.1 if GPU else 1e-4) * size, name


@on_this_machine
def test_not_a_number_stays_one(_):
    t = tensors(0, 1, 16, 16, 4, 4, DTYPES[0])
    t["z"][0, 3, 2, 2] = torch.nan
    y = kernels.forward(t["z"], t["main"], None)
    assert y[0, :, 1:4, 1:4].isnan().all() and not y[0, :, 0].isnan().any()


@on_this_machine
def test_not_a_number_reaches_one_pixel_further_at_most(_):
    t = tensors(0, 1, 16, 16, 3, 8, DTYPES[0])
    t["z"][0, 3, 1, 4] = torch.nan
    columns = kernels.forward(t["z"], t["main"], None)[0].isnan().any(dim=(0, 1)).nonzero()
    assert columns.flatten().tolist() == [2, 3, 4, 5]


def assert_same_on_another_stream(results):
    """Compute again, and read the result, on a side stream while the default one is busy.

    What went to the default stream by mistake would not be there yet.
    """
    expected = [tensor.cpu() for tensor in results()]
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    torch.cuda._sleep(2 * 10**9)  # cycles: a second
    with torch.cuda.stream(stream):
        found = [tensor.cpu() for tensor in results()]
    assert not torch.cuda.default_stream().query(), "the default stream was done too early"
    torch.cuda.synchronize()
    assert all(torch.equal(a, b) for a, b in zip(found, expected, strict=True))


@pytest.mark.gpu
def test_results_repeat_bit_for_bit_and_on_another_stream():
    t = tensors(1, 64, 16, 16, 32, 32, torch.bfloat16)

    def results():
        return (
            kernels.forward(t["z"], t["main"], t["alpha"]),
            *kernels.input_gradient(
                t["grad"], t["z"], t["main"], t["auxiliary"], t["scale"], fused.SURROGATES["bireal"]
            ),
            kernels.weight_gradient(t["grad"], t["z"], True),
        )

    assert_same_on_another_stream(results)


@pytest.mark.gpu
def test_which_layers_fit(monkeypatch):
    z = torch.randn(2, 16, 8, 8, device="cuda", dtype=torch.bfloat16)
    last = z.to(memory_format=torch.channels_last)

    def layer(**options):
        sizes = {"in_channels": 16, "out_channels": 16, "kernel_size": 3, "padding": 1, **options}
        return surge.layers.BinaryConv2d(**sizes, method="recu").cuda()

    assert not fused.fits(layer(), last)  # eager
    monkeypatch.setattr(fused, "compiled", lambda: True)
    assert fused.fits(layer(), last)
    assert not fused.fits(layer(), z)
    assert not fused.fits(layer(), last.float())
    assert not fused.fits(layer(stride=2), last)
    assert not fused.fits(layer(groups=2), last)
    assert not fused.fits(layer(out_channels=48), last)
    assert not fused.fits(layer(), last[:0])
    wide, channels = layer(in_channels=64, out_channels=64), {"memory_format": torch.channels_last}
    few = torch.randn(2, 64, 8, 8, device="cuda", dtype=torch.bfloat16).to(**channels)
    many = torch.randn(2, 64, 256, 256, device="cuda", dtype=torch.bfloat16).to(**channels)
    assert fused.fits(wide, few) and not fused.fits(wide, many)


class OnGpu(torch.Tensor):
    """A tensor without memory that says it is on a GPU."""

    is_cuda = True


@pytest.mark.parametrize(("outputs", "fits"), [(16, True), (32, False)])
def test_offsets_into_the_wider_side_fit_into_32_bits(monkeypatch, outputs, fits):
    monkeypatch.setattr(fused, "AVAILABLE", True)
    monkeypatch.setattr(fused, "compiled", lambda: True)
    layer = surge.layers.BinaryConv2d(16, outputs, 3, padding=1, method="recu")
    size = {"dtype": torch.bfloat16, "memory_format": torch.channels_last}
    z = torch.empty(2**10, 16, 256, 256, device="meta", **size).as_subclass(OnGpu)
    assert z[:, 0].numel() == 2**26 and fused.fits(layer, z) == fits
