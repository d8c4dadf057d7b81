"""The first convolution's kernels against plain torch: on a GPU, else in Triton's interpreter."""

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

import surge
from surge.errors import SurgeWarning
from surge.kernels import fused
from surge.kernels import stem_conv as kernels
from surge.layers import StemConv2d, stem
from surge.models import parts, resnet18_cifar, resnet20, vgg_small
from surge.pitfalls import trace
from tests.kernels.test_narrow_conv import (
    DEVICE,
    DTYPES,
    GPU,
    TOLERANCE,
    assert_same_on_another_stream,
    on_this_machine,
    relative,
)


def tensors(seed, batch, outputs, height, width, dtype):
    generator = torch.Generator().manual_seed(seed)

    def draw(*shape):
        return torch.randn(shape, generator=generator).to(dtype)

    image, grad = draw(batch, 3, height, width), draw(batch, outputs, height, width)
    weight = draw(outputs, 3, 3, 3).float()
    last = {"memory_format": torch.channels_last}
    return image.to(**last).to(DEVICE), weight.to(DEVICE), grad.to(**last).to(DEVICE)


shapes = st.tuples(
    st.integers(0, 99),
    st.integers(1, 5),
    st.sampled_from(stem.WIDTHS),
    st.integers(1, 9),
    st.integers(1, 9),
    st.sampled_from(DTYPES),
)


@on_this_machine
@settings(deadline=None, max_examples=40 if GPU else 12)
@given(shapes)
def test_forward_is_the_convolution(_, shape):
    image, weight, _grad = tensors(*shape)
    y = kernels.forward(image, weight)
    assert y.dtype == shape[-1] and y.is_contiguous(memory_format=torch.channels_last)
    expected = F.conv2d(image.double(), weight.double(), padding=1)
    assert relative(y, expected) < TOLERANCE[shape[-1]]


def check_weight_gradient(shape):
    image, weight, grad = tensors(*shape)
    found = kernels.weight_gradient(grad, image)
    expected = nn.grad.conv2d_weight(image.double(), weight.shape, grad.double(), padding=1)
    assert found.dtype == torch.float32 and found.shape == weight.shape
    assert (found.double() - expected).norm() <= 1e-5 * max(expected.norm(), 1.0)


@on_this_machine
@settings(deadline=None, max_examples=40 if GPU else 12)
@given(shapes)
def test_weight_gradient(_, shape):
    check_weight_gradient(shape)


@on_this_machine
@pytest.mark.parametrize("outputs", stem.WIDTHS)
def test_weight_gradient_of_many_blocks_and_parts(_, monkeypatch, outputs):
    """A program takes several blocks of pixels, the last program fewer."""
    monkeypatch.setattr(kernels, "CHUNKS", 3)
    check_weight_gradient((0, 8, outputs, 11, 9, DTYPES[0]))


@on_this_machine
def test_not_a_number_stays_where_a_convolution_has_it(_):
    image, weight, _grad = tensors(0, 2, 16, 5, 6, DTYPES[0])
    image[0, 1, 4, 5] = torch.nan
    expected = F.conv2d(image.double(), weight.double(), padding=1).isnan()
    assert torch.equal(kernels.forward(image, weight).isnan(), expected)


@on_this_machine
@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
def test_operator_gives_the_weight_its_gradient(_, layout):
    image, weight, grad = tensors(0, 3, 16, 5, 6, DTYPES[0])
    learns = weight.clone(memory_format=layout).requires_grad_()
    y = stem.stem_conv(image, learns)
    (y * grad.contiguous()).sum().backward()
    expected = F.conv2d(image.double(), weight.double(), padding=1)
    assert relative(y.detach(), expected) < TOLERANCE[y.dtype]
    expected = nn.grad.conv2d_weight(image.double(), weight.shape, grad.double(), padding=1)
    assert relative(learns.grad, expected) < 1e-5
    assert learns.grad.dtype == torch.float32 and learns.grad.stride() == learns.stride()


@pytest.mark.parametrize("options", [{}, {"stride": 2, "bias": True}, {"padding_mode": "reflect"}])
def test_eager_layer_is_the_stock_one_bit_for_bit(options):
    sizes = {"kernel_size": 3, "padding": 1, "bias": False, **options}
    torch.manual_seed(1)
    plain = nn.Conv2d(3, 16, **sizes)
    torch.manual_seed(1)
    layer = StemConv2d(3, 16, **sizes)
    assert torch.equal(layer.weight, plain.weight)
    layer.load_state_dict(plain.state_dict())
    image = torch.randn(2, 3, 8, 8).to(memory_format=torch.channels_last)
    for net in (plain, layer):
        net(image).square().sum().backward()
    assert torch.equal(layer(image), plain(image))
    assert torch.equal(layer.weight.grad, plain.weight.grad)


@pytest.mark.parametrize("build", [resnet20, resnet18_cifar, vgg_small])
def test_networks_start_from_the_same_weights_as_with_the_stock_layer(monkeypatch, build):
    torch.manual_seed(2)
    found = build()
    assert [isinstance(m, StemConv2d) for m in found.modules()].count(True) == 1
    monkeypatch.setattr(parts, "StemConv2d", nn.Conv2d)
    torch.manual_seed(2)
    expected = build().state_dict()
    assert list(found.state_dict()) == list(expected)
    assert all(torch.equal(value, expected[name]) for name, value in found.state_dict().items())


def test_layer_becomes_binary_where_the_first_layer_is_not_kept():
    net = resnet20()
    with pytest.warns(SurgeWarning, match='first layer "conv1" is binary'):
        report = surge.binarize_(net, "recu", keep_first=False)
    assert "conv1" in report.binary and type(net.conv1) is surge.BinaryConv2d


@pytest.mark.filterwarnings("error::surge.errors.SurgeWarning")
def test_layer_is_itself_again_after_a_conversion_that_failed():
    net = resnet20()
    with pytest.raises(SurgeWarning):
        surge.binarize_(net, "recu", keep_first=False)
    assert type(net.conv1) is StemConv2d and type(net.stages[0][0].conv1) is nn.Conv2d


def test_layer_is_one_step_of_a_traced_network():
    assert "conv1" in {node.target for node in trace(resnet20()).graph.nodes}


class OnGpu(torch.Tensor):
    """A tensor without memory that says it is on a GPU."""

    is_cuda = True


def image_of(*shape, dtype=torch.bfloat16, layout=torch.channels_last):
    made = torch.empty(*shape, device="meta", dtype=dtype, memory_format=layout)
    return made.as_subclass(OnGpu)


def test_which_layers_fit(monkeypatch):
    monkeypatch.setattr(fused, "AVAILABLE", True)
    image = image_of(2, 3, 8, 8)

    def fits(image=image, **options):
        sizes = {"in_channels": 3, "out_channels": 64, "kernel_size": 3, "padding": 1}
        return stem.fits(StemConv2d(**{**sizes, "bias": False, **options}), image)

    assert not fits()  # eager
    monkeypatch.setattr(fused, "compiled", lambda: True)
    assert fits() and fits(out_channels=16) and fits(out_channels=128)
    for options in (
        {"bias": True},
        {"stride": 2},
        {"padding": 0},
        {"padding": "same"},
        {"padding_mode": "reflect"},
        {"dilation": 2},
        {"kernel_size": 5},
        {"groups": 3, "out_channels": 48},
        {"out_channels": 48},
    ):
        assert not fits(**options), options
    assert not fits(image_of(2, 1, 8, 8), in_channels=1)
    assert not fits(image_of(2, 4, 8, 8), in_channels=4)
    assert not fits(image_of(2, 1, 8, 8))  # the stock layer says what is wrong
    assert not fits(image_of(0, 3, 8, 8))
    assert not fits(image_of(2, 3, 8, 8, dtype=torch.float32))
    assert not fits(image_of(2, 3, 8, 8, layout=torch.contiguous_format))
    assert not fits(image_of(2, 3, 8, 8).requires_grad_())
    assert not fits(
        torch.empty(2, 3, 8, 8, dtype=torch.bfloat16).to(memory_format=torch.channels_last)
    )
    assert fits(image_of(2**9, 3, 256, 255)) and not fits(image_of(2**9, 3, 256, 256))


def step(net, image):
    """Return the output and the weight's gradient of one step in bfloat16."""
    net.zero_grad()
    with torch.autocast("cuda", torch.bfloat16):
        y = net(image)
    y.float().square().mean().backward()
    return y.detach(), net.weight.grad.clone()


@pytest.mark.gpu
@pytest.mark.parametrize("outputs", stem.WIDTHS)
def test_compiled_step_uses_the_kernels(outputs):
    layer = StemConv2d(3, outputs, 3, padding=1, bias=False).cuda()
    layer.to(memory_format=torch.channels_last)
    image = torch.randn(16, 3, 32, 32, device="cuda").to(memory_format=torch.channels_last)
    expected = step(layer, image)
    compiled = torch.compile(layer, fullgraph=True)
    step(compiled, image)
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
        found = step(compiled, image)
        torch.cuda.synchronize()
    started = " ".join(event.key for event in profile.key_averages())
    assert "stem_forward" in started and "stem_weight_gradient" in started
    assert found[0].dtype == torch.bfloat16 and found[1].dtype == torch.float32
    assert found[0].stride() == expected[0].stride()
    assert all(relative(f, e) < 1e-2 for f, e in zip(found, expected, strict=True))


@pytest.mark.gpu
def test_results_repeat_bit_for_bit_and_on_another_stream():
    image, weight, grad = tensors(1, 64, 64, 32, 32, torch.bfloat16)
    assert_same_on_another_stream(
        lambda: (kernels.forward(image, weight), kernels.weight_gradient(grad, image))
    )
