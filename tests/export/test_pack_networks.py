"""Drawn networks: odd channels, strides, dilation, groups, every activation and method."""

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, assume, given, seed, settings
from hypothesis import strategies as st
from torch import nn

import surge
from surge.errors import ConfigError
from surge.method import get_method
from tests.export.packing import assert_close, expected, margin, packed_output, settle
from tests.nets import binarized

CHANNELS = (3, 8, 17, 65)


def drawn(examples, number, **strategies):
    """Call a function with some draws, others for every number."""
    slow = [HealthCheck.too_slow, HealthCheck.filter_too_much]
    relaxed = settings(max_examples=examples, suppress_health_check=slow)
    return lambda function: seed(number)(relaxed(given(**strategies)(function)))()


def binarized_or_refused(model, method, **options):
    """Binarise; a draw that the method refuses is another draw."""
    try:
        return binarized(model, method, **options)
    except ConfigError:
        assume(False)


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
    divisors = [g for g in range(2, inputs + 1) if inputs % g == 0]
    fitting = [g for g in divisors if inputs // g * kernel * kernel >= 2]
    groups = draw(st.sampled_from(fitting)) if fitting and draw(st.booleans()) else 1
    outputs = draw(st.sampled_from(CHANNELS if groups == 1 else (groups, 2 * groups)))
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
        "leaky": nn.LeakyReLU,
        "rprelu": lambda: surge.RPReLU(channels),
    }[kind]()


@st.composite
def networks(draw):
    """A float stem, binary units, a pool and a head; sometimes a binary linear layer."""
    torch.manual_seed(draw(st.integers(0, 10**6)))
    channels, size = draw(st.sampled_from(CHANNELS)), draw(st.integers(5, 9))
    first = channels
    width = draw(st.sampled_from((12, 17)))
    layers = [nn.Conv2d(channels, width, 3, padding=1), nn.Hardtanh()]
    channels = width
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


@pytest.mark.parametrize("method", METHODS)
def test_drawn_network_gives_torchs_output(engine, tmp_path, method):
    @drawn(4, METHODS.index(method), network=networks(), batch=st.sampled_from((1, 7)))
    def compare(network, batch):
        model, channels = network
        size = next(s for s in range(5, 10) if _accepts(model, channels, s))
        x = torch.randn(7, channels, size, size)
        settle(binarized_or_refused(model, method), x)
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
    norm.running_mean.copy_(torch.randint(-9, 10, (channels,)))
    norm.running_var.uniform_(0.5, 20)
    with torch.no_grad():
        norm.weight.uniform_(-2, 2)
        norm.weight[::5] = 0.0
        norm.bias.copy_(torch.where(torch.rand(channels) < 0.8, 0.0, torch.randn(channels)))
    return norm


BETWEEN = ("none", "hardtanh", "relu", "leaky", "prelu", "one prelu", "rprelu")
"""What may stand behind the norms of a binary chain."""


@st.composite
def binary_chains(draw, kind):
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
        if draw(st.integers(0, 3)):
            layers += [norm_with_ties(channels), activation(kind, channels)]
    conv, channels, size = draw(convolution(channels, size))
    conv.bias = None
    return nn.Sequential(*layers, conv), (first, start)


def draw_vectors(model, method):
    """Draw slopes and shifts; a PReLU that falls and is then shifted changes its sign twice."""
    for module in model.modules():
        shifted = method == "reactnet" or isinstance(module, surge.RPReLU)
        for name, parameter in module.named_parameters(recurse=False):
            if "shift" in name:
                nn.init.uniform_(parameter, -1.5, 1.5)
                parameter.data[::2].round_()
            elif name == "slope" or isinstance(module, nn.PReLU):
                nn.init.uniform_(parameter, 0.0 if shifted else -0.5, 0.5)


@pytest.mark.parametrize("kind", BETWEEN)
def test_pure_binary_chain_is_exact(engine, tmp_path, kind):
    @drawn(
        12,
        20 + BETWEEN.index(kind),
        chain=binary_chains(kind),
        batch=st.sampled_from((40, 1)),
        method=st.sampled_from(("bnn", "bireal", "reactnet")),
    )
    def compare(chain, batch, method):
        model, (channels, size) = chain
        binarized(model, method, keep_first=False, keep_last=False).eval()
        draw_vectors(model, method)
        x = torch.randn(batch, channels, size, size)
        x.view(-1)[::3] = 0.0
        x.view(-1)[::7] = -0.0
        actual = packed_output(engine, model, x, tmp_path / "m.surge")
        assert np.array_equal(actual, expected(model, x))


def test_sequences_of_one_step_and_one_channel_pack(engine, tmp_path):
    torch.manual_seed(0)
    for model, x in (
        (nn.Sequential(nn.Conv1d(1, 8, 1), nn.Conv1d(8, 4, 1)), torch.randn(3, 1, 1)),
        (nn.Sequential(nn.Conv1d(4, 1, 5), nn.Linear(1, 6)), torch.randn(3, 4, 5)),
    ):
        model.eval()
        assert_close(packed_output(engine, model, x, tmp_path / "m.surge"), expected(model, x))
