"""Every registered method, in a residual network, a plain one and a perceptron."""

import numpy as np
import pytest
import torch
from torch import nn

from surge.errors import ExportError
from surge.export import pack
from surge.summary import summary
from tests.contract.flags import FLAGS, named
from tests.export.packing import assert_close, expected, packed_output, settle, small_resnet
from tests.nets import CENTRED, METHODS, binarized

FEW_BITS = {
    "dorefa-w1a2": {"input_bits": 2},
    "dorefa-w1a4": {"input_bits": 4},
    "dorefa-w4a4": {"weight_bits": 4, "input_bits": 4},
    "dorefa-w2a1": {"weight_bits": 2},
    "dorefa-w1a32": {"input_bits": 32},
    "dorefa-w32a1": {"weight_bits": 32},
    "dorefa-unit": {"unit_inputs": True},
}
PACKED_FLAGS = [(method, options) for method, options in FLAGS if "ternary" not in options]
"""All but the weights of three values, which pack refuses."""


def resnet():
    return small_resnet((8, 20), classes=5)


def vgg():
    units, channels = [], 3
    for unit, width in enumerate((8, 12, 40)):
        units += [nn.Conv2d(channels, width, 3, padding=1, bias=False)]
        units += [nn.MaxPool2d(2)] if unit == 1 else []
        units += [nn.BatchNorm2d(width), nn.Hardtanh()]
        channels = width
    return nn.Sequential(*units, nn.Flatten(), nn.Linear(40 * 16, 5))


def perceptron():
    layers, width = [nn.Flatten()], 3 * 64
    for size in (24, 33, 20):
        layers += [nn.Linear(width, size), nn.BatchNorm1d(size), nn.Hardtanh()]
        width = size
    return nn.Sequential(*layers, nn.Linear(width, 5))


NETWORKS = {"resnet": resnet, "vgg": vgg, "perceptron": perceptron}


def trained(network, method, **options):
    torch.manual_seed(0)
    x = torch.randn(6, 3, 8, 8)
    model = binarized(NETWORKS[network](), method, **options)
    return settle(model, x), x


@pytest.mark.parametrize("network", NETWORKS)
@pytest.mark.parametrize("method", METHODS)
def test_every_method_packs_and_gives_torchs_output(engine, tmp_path, method, network):
    model, x = trained(network, method)
    actual = packed_output(engine, model, x, tmp_path / "m.surge")
    wanted = expected(model, x)
    assert_close(actual, wanted)
    assert np.array_equal(actual.argmax(1), wanted.argmax(1))


@pytest.mark.parametrize("network", ["resnet", "vgg"])
@pytest.mark.parametrize(("method", "options"), named(PACKED_FLAGS))
def test_every_flag_packs_and_gives_torchs_output(engine, tmp_path, method, options, network):
    model, x = trained(network, method, **options)
    assert_close(packed_output(engine, model, x, tmp_path / "m.surge"), expected(model, x))
    packed = pack(model, x[:1], tmp_path / "m.surge", rest="int8")
    assert packed.tensor_bytes + packed.folded_bytes == summary(model, x[:1], rest="int8").bytes


@pytest.mark.parametrize("method", CENTRED)
def test_negative_factor_before_a_sign_is_kept(engine, tmp_path, method):
    model, x = trained("vgg", method)
    for name, parameter in model.named_parameters():
        if name.endswith("input_distance"):
            nn.init.constant_(parameter, -0.7)
    assert_close(packed_output(engine, model, x, tmp_path / "m.surge"), expected(model, x))


@pytest.mark.parametrize("network", NETWORKS)
@pytest.mark.parametrize("options", FEW_BITS.values(), ids=FEW_BITS)
def test_values_of_few_bits_give_torchs_output(engine, tmp_path, options, network):
    model, x = trained(network, "dorefa", **options)
    assert_close(packed_output(engine, model, x, tmp_path / "m.surge"), expected(model, x))
    packed = pack(model, x[:1], tmp_path / "m.surge")
    assert packed.tensor_bytes == summary(model, x[:1], rest="fp32").bytes


@pytest.mark.parametrize("method", METHODS)
def test_size_is_what_summary_says_for_every_method(tmp_path, method):
    model, x = trained("resnet", method)
    packed = pack(model, x[:1], tmp_path / "m.surge", rest="int8")
    assert packed.tensor_bytes == summary(model, x[:1], rest="int8").bytes


@pytest.mark.parametrize("method", ["bnn", "xnor", "tbn", "dorefa", *CENTRED])
def test_sequences_pack(engine, tmp_path, method):
    torch.manual_seed(0)
    layers = [
        nn.Conv1d(3, 8, 3, padding=1),
        nn.BatchNorm1d(8),
        nn.Hardtanh(),
        nn.Conv1d(8, 20, 5, stride=2, padding=2, bias=False),
        nn.MaxPool1d(2),
        nn.BatchNorm1d(20),
        nn.PReLU(20),
        nn.Conv1d(20, 9, 3, dilation=2),
        nn.AdaptiveAvgPool1d(1),
        nn.Flatten(),
        nn.Linear(9, 4),
    ]
    x = torch.randn(5, 3, 32)
    model = settle(binarized(nn.Sequential(*layers), method), x)
    assert_close(packed_output(engine, model, x, tmp_path / "m.surge"), expected(model, x))
    front = model[:7]
    assert_close(packed_output(engine, front, x, tmp_path / "f.surge"), expected(front, x))


def test_attention_is_refused_by_name(tmp_path):
    class Scores(nn.Module):
        def forward(self, x):
            return x @ x.transpose(1, 2)

    with pytest.raises(ExportError, match=r'aten\.\S+ in module "1"'):
        pack(nn.Sequential(nn.Linear(4, 4), Scores()), torch.zeros(1, 3, 4), tmp_path / "m.surge")


def biased_row(method, *, norm, activation=nn.Identity, **options):
    """Build biased layers with nothing, or a norm, between them, and an input for them."""
    torch.manual_seed(0)
    layers = []
    for _ in range(3):
        layers += [nn.Conv2d(6, 6, 3, padding=1), *([nn.BatchNorm2d(6)] if norm else [])]
        layers += [activation()]
    x = torch.randn(4, 6, 8, 8)
    return settle(binarized(nn.Sequential(*layers, nn.Conv2d(6, 2, 1)), method, **options), x), x


@pytest.mark.parametrize("norm", [True, False])
@pytest.mark.parametrize(("method", "options"), named([(m, {}) for m in METHODS] + PACKED_FLAGS))
def test_size_of_biased_layers_in_a_row_is_what_summary_says(tmp_path, method, options, norm):
    model, x = biased_row(method, norm=norm, **options)
    packed = pack(model, x[:1], tmp_path / "m.surge")
    assert packed.tensor_bytes + packed.folded_bytes == summary(model, x[:1]).bytes


@pytest.mark.parametrize(
    ("method", "activation", "folded"),
    [
        ("recu", nn.Hardtanh, 0),
        ("xnor", nn.Identity, 0),
        ("recu", nn.PReLU, 4),
        ("reactnet", nn.Hardtanh, 24),
    ],
)
def test_slopes_and_shifts_alone_fold_into_thresholds(tmp_path, method, activation, folded):
    # Two binary layers with one threshold between them.
    model, x = biased_row(method, norm=True, activation=activation)
    assert pack(model, x[:1], tmp_path / "m.surge").folded_bytes == folded
