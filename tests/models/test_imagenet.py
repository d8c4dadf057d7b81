import pytest
import torch
from torch import nn

import surge
from surge.errors import ConfigError
from surge.models import bireal_resnet18
from surge.models.imagenet import OneConvBlock


def test_bireal_resnet18_has_the_published_size(inner_convs, macs):
    with torch.device("meta"):
        model = bireal_resnet18()
    assert len(inner_convs(model)) == 16
    assert sum(conv.weight.numel() for conv in inner_convs(model)) == 10_985_472
    assert sum(p.numel() for p in model.parameters()) == 11_689_512
    found = macs(model, torch.zeros(1, 3, 224, 224, device="meta"), inner_convs(model))
    assert found / 1e9 == pytest.approx(1.676, abs=0.001)


def test_bireal_resnet18_keeps_stem_shortcuts_and_head_float():
    model = bireal_resnet18(classes=7)
    report = surge.binarize_(model, "bireal", skip=("*downsample*",))
    verdicts = [row.verdict for row in report.rows]
    assert verdicts.count("binary") == 16 and len(verdicts) == 16 + 3 + 2
    assert model(torch.randn(2, 3, 64, 64)).shape == (2, 7)


@pytest.mark.parametrize("activation", ["none", "relu", "hardtanh"])
def test_block_adds_its_shortcut_before_the_activation(activation):
    block = OneConvBlock(4, 4, 1, activation)
    nn.init.zeros_(block.bn.weight)
    x = torch.randn(2, 4, 6, 6)
    wanted = {"none": x, "relu": x.relu(), "hardtanh": x.clamp(-1, 1)}[activation]
    torch.testing.assert_close(block(x), wanted)


def test_unknown_activation_is_refused():
    with pytest.raises(ConfigError, match="activation='gelu'"):
        bireal_resnet18(activation="gelu")
