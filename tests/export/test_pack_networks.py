"""Drawn networks: odd channels, strides, dilation, groups, every activation and method."""

import warnings

import numpy as np
import torch
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from torch import nn

import surge
from surge.errors import SurgeWarning
from surge.method import get_method
from tests.export.packing import assert_close, expected, margin, packed_output, settle

CHANNELS = (3, 8, 17, 65)
relaxed = settings(
    max_examples=15,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)


class Residual(nn.Module):
    def __init__(self, *inner):
        super().__init__()
        self.inner = nn.Sequential(*inner)

    def forward(self, x):
        return self.inner(x) + x


class Duplicate(nn.Module):
    """Channels twice, as ReActNet's widening blocks have them."""

    def forward(self, x):
        return torch.cat([x, x], dim=1)


@st.composite
def convolution(draw, inputs, size):
    """A convolution that fits an image, and the size of what it makes."""
    kernel, dilation = draw(st.sampled_from((1, 2, 3, 5))), draw(st.sampled_from((1, 2)))
    padding, stride = draw(st.integers(0, 2)), draw(st.sampled_from((1, 2)))
    room = size + 2 * padding - dilation * (kernel - 1) - 1
    if room < 0:
        kernel, dilation, padding, room = 3, 1, 1, size - 1
    divisors = [g for g in (1, inputs) if inputs // g * kernel * kernel >= 2]
    groups = draw(st.sampled_from(divisors or [1]))
    outputs = groups if groups > 1 else draw(st.sampled_from(CHANNELS))
    if draw(st.booleans()) and groups > 1:
        outputs = 2 * groups
    conv = nn.Conv2d(
        inputs,
        outputs,
        kernel,
        stride=stride,
        padding=padding,
        dilation=dilation,
        groups=groups,
        bias=draw(st.booleans()),
    )
    return conv, outputs, room // stride + 1


def activation(kind, channels):
    return {
        "hardtanh": nn.Hardtanh,
        "relu": nn.ReLU,
        "none": nn.Identity,
        "prelu": lambda: nn.PReLU(channels),
        "one prelu": nn.PReLU,
        "rprelu": lambda: surge.RPReLU(channels),
    }[kind]()


@st.composite
def networks(draw):
    """A float stem, binary units, a pool and a head; sometimes a binary linear layer."""
    torch.manual_seed(draw(st.integers(0, 10**6)))
    channels, size = draw(st.sampled_from(CHANNELS)), draw(st.integers(5, 9))
    first = channels
    layers = [nn.Conv2d(channels, 17, 3, padding=1), nn.Hardtanh()]
    channels = 17
    for _ in range(draw(st.integers(1, 2))):
        conv, channels, size = draw(convolution(channels, size))
        layers.append(conv)
        if draw(st.booleans()):
            layers.append(nn.BatchNorm2d(channels))
        kinds = ("hardtanh", "relu", "none", "prelu", "one prelu", "rprelu")
        layers.append(activation(draw(st.sampled_from(kinds)), channels))
        if draw(st.booleans()):
            same = nn.Conv2d(channels, channels, 3, padding=1, bias=False)
            layers.append(Residual(same, nn.BatchNorm2d(channels)))
    if size >= 2:
        kinds = {"max": nn.MaxPool2d(2), "avg": nn.AvgPool2d(2), "none": nn.Identity()}
        pool = draw(st.sampled_from(sorted(kinds)))
        layers.append(kinds[pool])
        size = size if pool == "none" else size // 2
    if draw(st.booleans()):
        layers.append(Duplicate())
        channels *= 2
    layers.append(nn.Flatten())
    features = channels * size * size
    layers += [nn.Linear(features, 9), nn.BatchNorm1d(9), nn.Hardtanh(), nn.Linear(9, 4)]
    return nn.Sequential(*layers), first


def judged(method):
    """Whether signs of z decide all, which a margin can judge; test_pack_methods has the others."""
    cls = get_method(method)
    return not cls.for_transformers and not cls.centred_values and cls.bits[1] in (1, 32)


METHODS = [method for method in surge.list_methods() if judged(method)]


@relaxed
@given(drawn=networks(), method=st.sampled_from(METHODS), batch=st.sampled_from((1, 7)))
def test_drawn_network_gives_torchs_output(engine, tmp_path, drawn, method, batch):
    model, channels = drawn
    size = next(s for s in range(5, 10) if _accepts(model, channels, s))
    x = torch.randn(7, channels, size, size)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", SurgeWarning)
        surge.binarize_(model, method)
    settle(model, x)
    x = x[:batch]
    assume(margin(model, x) > 1e-5)
    assert_close(packed_output(engine, model, x, tmp_path / "m.surge"), expected(model, x))


def _accepts(model, channels, size):
    try:
        model.eval()(torch.zeros(1, channels, size, size))
    except RuntimeError:
        return False
    return True


def norm_with_ties(channels):
    """A BatchNorm whose result is often exactly zero: whole means, and gammas of both signs."""
    norm = nn.BatchNorm2d(channels)
    norm.running_mean.copy_(torch.randint(-4, 5, (channels,)))
    norm.running_var.uniform_(0.5, 20)
    with torch.no_grad():
        norm.weight.uniform_(-2, 2)
        norm.weight[::5] = 0.0
        norm.bias.copy_(torch.where(torch.rand(channels) < 0.5, 0.0, torch.randn(channels)))
    return norm


@st.composite
def binary_chains(draw):
    """Binary convolutions, norms and pools: sums of +-1, which fp32 holds exactly."""
    torch.manual_seed(draw(st.integers(0, 10**6)))
    channels, size = draw(st.sampled_from(CHANNELS)), draw(st.integers(5, 9))
    first, start, layers = channels, size, []
    for _ in range(draw(st.integers(1, 3))):
        conv, channels, size = draw(convolution(channels, size))
        conv.bias = None
        layers.append(conv)
        if size >= 2 and draw(st.booleans()):
            layers.append(nn.MaxPool2d(2))
            size //= 2
        if draw(st.booleans()):
            layers += [norm_with_ties(channels), *draw(st.sampled_from(((), (nn.Hardtanh(),))))]
    conv, channels, size = draw(convolution(channels, size))
    conv.bias = None
    return nn.Sequential(*layers, conv), (first, start)


@relaxed
@given(
    drawn=binary_chains(), batch=st.sampled_from((1, 7)), method=st.sampled_from(("bnn", "bireal"))
)
def test_pure_binary_chain_is_exact(engine, tmp_path, drawn, batch, method):
    model, (channels, size) = drawn
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", SurgeWarning)
        surge.binarize_(model, method, keep_first=False, keep_last=False)
    x = torch.randn(batch, channels, size, size)
    x.view(-1)[::3] = 0.0
    x.view(-1)[::7] = -0.0
    actual = packed_output(engine, model.eval(), x, tmp_path / "m.surge")
    assert np.array_equal(actual, expected(model, x))


def test_sequences_of_one_step_and_one_channel_pack(engine, tmp_path):
    torch.manual_seed(0)
    for model, x in (
        (nn.Sequential(nn.Conv1d(1, 8, 1), nn.Conv1d(8, 4, 1)), torch.randn(3, 1, 1)),
        (nn.Sequential(nn.Conv1d(4, 1, 5), nn.Linear(1, 6)), torch.randn(3, 4, 5)),
    ):
        model.eval()
        assert_close(packed_output(engine, model, x, tmp_path / "m.surge"), expected(model, x))
