import math

import pytest
import torch
from torch import nn

from surge.errors import ConfigError
from surge.models import vgg_small


def test_vgg_small_inner_convs_have_the_published_size(inner_convs, macs):
    model = vgg_small()
    inner = inner_convs(model)
    assert len(inner) == 5
    assert sum(conv.weight.numel() for conv in inner) == 4_571_136
    found = macs(model, torch.zeros(1, 3, 32, 32), inner)
    assert found / 1e6 == pytest.approx(604.0, abs=0.05)


def test_vgg_small_units_are_conv_pool_norm_activation():
    first, *kinds = (type(module).__name__ for module in vgg_small().features)
    plain = ["Conv2d", "BatchNorm2d", "Hardtanh"]
    pooled = ["Conv2d", "MaxPool2d", "BatchNorm2d", "Hardtanh"]
    assert first == "StemConv2d" and ["Conv2d", *kinds] == 3 * (plain + pooled)


@pytest.mark.parametrize("activation", ["hardtanh", "relu", "none"])
def test_vgg_small_maps_images_to_logits(activation):
    model = vgg_small(5, activation=activation)
    assert model(torch.randn(2, 3, 32, 32)).shape == (2, 5)
    assert model.fc.in_features == 8192


def test_vgg_small_starts_from_fan_out_and_a_narrow_head():
    model = vgg_small()
    for conv in (m for m in model.modules() if isinstance(m, nn.Conv2d)):
        expected = math.sqrt(2 / (9 * conv.out_channels))
        error = 5 * expected / math.sqrt(2 * conv.weight.numel())
        assert conv.weight.std().item() == pytest.approx(expected, abs=error)
        assert conv.bias is None
    assert model.fc.weight.std().item() == pytest.approx(0.01, rel=0.02)
    assert (model.fc.bias == 0).all()


def test_vgg_small_compiles_as_one_graph_in_channels_last():
    model = vgg_small().to(memory_format=torch.channels_last).eval()
    images = torch.randn(2, 3, 32, 32).to(memory_format=torch.channels_last)
    compiled = torch.compile(model, fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(compiled(images), model(images))


def test_vgg_small_refuses_an_unknown_activation_and_no_classes():
    with pytest.raises(ConfigError, match='Did you mean "relu"'):
        vgg_small(activation="rellu")
    with pytest.raises(ConfigError, match="classes=-1"):
        vgg_small(-1)
