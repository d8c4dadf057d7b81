"""Both gradients in one kernel against plain torch: on a GPU, else in Triton's interpreter."""

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

import surge
from surge.compensation.dual_path import tap
from surge.kernels import branch, fused, meeting
from surge.layers.elastic import elastic_signed, elastic_unsigned
from tests.kernels.test_narrow_conv import DEVICE, DTYPES, GPU, TOLERANCE, on_this_machine


def reference(raw, auxiliary, z, scale, surrogate):
    """The formula in float64."""
    raw, auxiliary, z = raw.double(), auxiliary.double(), z.double()
    factor = (z.abs() <= 1) if surrogate == "clipped" else (2 - 2 * z.abs()).clamp(min=0)
    g_b = raw * factor
    squares = torch.stack([g_b.square().sum(), auxiliary.square().sum()])
    return g_b + scale.double() * auxiliary, squares


sizes = st.one_of(
    st.tuples(*(st.integers(1, 9),) * 4),  # images
    st.tuples(st.integers(1, 40), st.integers(1, 700)),  # rows
    st.just((3, 64, 33, 17)),  # more than one program
)


@on_this_machine
@settings(deadline=None, max_examples=60 if GPU else 20)
@given(
    st.integers(0, 99),
    sizes,
    st.booleans(),
    st.sampled_from(DTYPES),
    st.sampled_from(["clipped", "bireal"]),
)
def test_sum_and_norms(_, seed, shape, last, dtype, surrogate):
    generator = torch.Generator().manual_seed(seed)
    raw, auxiliary, z = (torch.randn(shape, generator=generator).to(dtype) for _ in range(3))
    z.flatten()[::5] = 1.0
    if last and len(shape) == 4:
        raw, z = (x.to(memory_format=torch.channels_last) for x in (raw, z))
    raw, auxiliary, z, scale = (x.to(DEVICE) for x in (raw, auxiliary, z, torch.tensor(0.37)))
    code = fused.SURROGATES[surrogate]
    total, (*squares, _level) = meeting.meet(raw, auxiliary, z, None, scale, code)
    expected, norms = reference(raw, auxiliary, z, scale, surrogate)
    assert total.dtype == z.dtype and total.stride() == z.stride()
    assert (total.double() - expected).norm() <= TOLERANCE[dtype] * max(
        float(expected.norm()), 1e-3
    )
    assert torch.allclose(torch.stack(squares).double(), norms, rtol=1e-5, atol=1e-6)


@on_this_machine
@pytest.mark.parametrize("enough", [1, 9, 17, 99])
def test_passes_of_a_program_change_nothing(_, enough, monkeypatch):
    draw = torch.Generator().manual_seed(enough)
    raw, auxiliary, z = (torch.randn(50_001, generator=draw).to(DEVICE) for _ in range(3))
    scale = torch.tensor(0.37, device=DEVICE)
    expected, norms = reference(raw, auxiliary, z, scale, "clipped")
    monkeypatch.setattr(meeting, "ENOUGH", enough)  # eight, four, two passes, one
    rule = fused.SURROGATES["clipped"]
    total, (*squares, _level) = meeting.meet(raw, auxiliary, z, None, scale, rule)
    torch.testing.assert_close(total, expected.float())
    torch.testing.assert_close(torch.stack(squares), norms.float())


@on_this_machine
@settings(deadline=None, max_examples=40 if GPU else 12)
@given(
    st.integers(0, 99),
    st.tuples(st.integers(1, 40), st.integers(1, 700)),
    st.sampled_from([0.7, 0.02, 1e-7]),
    st.booleans(),
)
def test_elastic_levels(_, seed, shape, level, unsigned):
    draw = torch.Generator().manual_seed(seed)
    z, to_binary, to_route = (torch.randn(shape, generator=draw).to(DEVICE) for _ in range(3))
    z.flatten()[::7] = 0.0
    scale = torch.tensor(0.37, device=DEVICE)

    def gradients(forward):
        inputs = [x.clone().requires_grad_() for x in (z, torch.tensor(level, device=DEVICE))]
        probes = [torch.zeros((), device=DEVICE, requires_grad=True) for _ in range(2)]
        binary, route = forward(*inputs, *probes)
        ((binary * to_binary).sum() + (route * to_route).sum()).backward()
        return binary, *(x.grad for x in (*inputs, *probes))

    def at_once(x, a, main, auxiliary):
        code = branch.RULES["elastic_unsigned" if unsigned else "elastic_signed"]
        return branch.branching(x, a, scale, main, auxiliary, code, x.dtype)

    def apart(x, a, main, auxiliary):
        tapped = tap(x, main)
        route = tap(x * scale + (1 - scale) * x.detach(), auxiliary)
        return (elastic_unsigned if unsigned else elastic_signed)(tapped, a), route

    found, expected = gradients(at_once), gradients(apart)
    assert torch.equal(found[0], expected[0])
    for a, b in zip(found[1:], expected[1:], strict=True):
        assert (a - b).norm() <= 1e-4 * max(float(b.norm()), 1e-2)


def network(method, channels=96):
    torch.manual_seed(3)
    net = nn.Sequential(
        nn.Conv2d(3, channels, 3, padding=1, bias=False),
        nn.BatchNorm2d(channels),
        nn.Conv2d(channels, 24, 3, stride=2, padding=1, bias=False),
        nn.BatchNorm2d(24),
        nn.Conv2d(24, 32, 1, bias=False),
        nn.BatchNorm2d(32),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(32, 12),
        nn.BatchNorm1d(12),
        nn.Linear(12, 4),
    ).to(memory_format=torch.channels_last)
    surge.binarize_(net, method)
    return net.to(DEVICE)


def sentence_layers():
    torch.manual_seed(3)
    return nn.Sequential(
        nn.Linear(3 * 7 * 7, 24),
        nn.LayerNorm(24),
        surge.BinaryLinear(24, 32, method="bit"),
        nn.LayerNorm(32),
        nn.ReLU(),
        surge.BinaryLinear(32, 16, method="binarybert", method_options={"unsigned": True}),
        nn.LayerNorm(16),
        nn.Linear(16, 4),
    ).to(DEVICE)


def gradients(monkeypatch, *, meets, method, **options):
    net = network(method) if method else sentence_layers()
    compensation = surge.compensate_(net, **options)
    x = torch.randn(4, 3, 7, 7, generator=torch.Generator().manual_seed(5)).to(DEVICE)
    x = x if method else x.flatten(1)
    used = []
    with monkeypatch.context() as patch:
        original = meeting.meet
        patch.setattr(meeting, "meet", lambda *given: used.append(1) or original(*given))
        patch.setattr(fused, "fits", lambda *_: False)
        patch.setattr(branch, "fits", lambda *_: meets)
        with torch.autocast(DEVICE.type, torch.bfloat16, enabled=GPU):
            y = net(x.to(memory_format=torch.channels_last) if method else x)
        F.cross_entropy(y.float(), torch.arange(4, device=DEVICE)).backward()
    assert bool(used) == meets
    found = {name: p.grad for name, p in net.named_parameters() if p.grad is not None}
    for name, path in compensation.paths.items():
        found |= {f"{name} {k}": path.squares(k) for k in ("main", "auxiliary")}
    return y, found


@on_this_machine
@pytest.mark.parametrize("method", ["bnn", "recu", "bireal", "reactnet"])
@pytest.mark.parametrize(
    "options",
    [
        {"eta": 0.3},
        {"auxiliary": "tied", "eta": 0.3},
        {"auxiliary": "pointwise", "only": ("2", "4")},
        {"objective": "frozen", "fixed_scale": 0.5},
    ],
    ids=str,
)
def test_network_has_the_same_gradients(_, monkeypatch, method, options):
    compare(monkeypatch, method=method, **options)


@on_this_machine
@pytest.mark.parametrize("auxiliary", ["independent", "tied"])
def test_layers_with_levels_have_the_same_gradients(_, monkeypatch, auxiliary):
    compare(monkeypatch, method=None, auxiliary=auxiliary, eta=0.3)


def compare(monkeypatch, *, method, **options):
    y, expected = gradients(monkeypatch, meets=False, method=method, **options)
    same, found = gradients(monkeypatch, meets=True, method=method, **options)
    assert torch.equal(same, y)
    assert found.keys() == expected.keys()
    for name, value in found.items():
        # A factor in front of a BatchNorm has no gradient but rounding: hence the floor. In bf16
        # the rounding of ReCU's, a sum over all filters, is larger than that.
        if GPU and method == "recu" and name.endswith("alpha"):
            continue
        size = max(float(expected[name].norm()), 0.05)
        error = float((value - expected[name]).norm())
        assert error < (0.1 if GPU else 1e-4) * size, name


@pytest.mark.parametrize(
    "options",
    [
        *({"scope": "clipped"}, {"dose": "clipped_share"}),
        *({"noise": True}, {"align": 1.0}, {"weight_side": 0.1}),
    ],
    ids=str,
)
def test_other_settings_keep_their_own_way(options, monkeypatch):
    monkeypatch.setattr(branch, "fits", lambda *_: pytest.fail("it must not be asked"))
    net = network("bireal")
    surge.compensate_(net, **options)
    net(torch.randn(2, 3, 7, 7).to(DEVICE)).sum().backward()


def test_only_compiled_code_on_a_gpu_uses_it():
    layer = surge.BinaryConv2d(4, 4, 3, method="reactnet")
    assert not branch.fits(layer, torch.randn(2, 4, 5, 5))


@pytest.mark.gpu
def test_which_layers_fit(monkeypatch):
    monkeypatch.setattr(fused, "compiled", lambda: True)
    z = torch.randn(2, 96, 8, 8, device="cuda", dtype=torch.bfloat16)
    layer = surge.BinaryConv2d(96, 96, 3, method="reactnet").cuda()
    assert branch.fits(layer, z) and branch.fits(layer, z.to(memory_format=torch.channels_last))
    assert not branch.fits(layer, z[:, :, ::2]) and not branch.fits(layer, z.double())
    assert not branch.fits(layer, z[:0])
    for method in ("bireal", "recu", "irnet"):  # nothing learns there; no rule that it knows
        assert not branch.fits(surge.BinaryConv2d(96, 96, 3, method=method).cuda(), z)


@pytest.mark.gpu
def test_results_repeat_bit_for_bit_and_on_another_stream():
    draw = torch.Generator(device="cuda").manual_seed(0)
    raw, auxiliary, z = (
        torch.randn(64, 64, 32, 32, device="cuda", generator=draw).bfloat16() for _ in range(3)
    )
    scale = torch.tensor(0.3, device="cuda")
    expected = meeting.meet(raw, auxiliary, z, None, scale, 2)
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        found = meeting.meet(raw, auxiliary, z, None, scale, 2)
    stream.synchronize()
    assert all(torch.equal(a, b) for a, b in zip(found, expected, strict=True))
