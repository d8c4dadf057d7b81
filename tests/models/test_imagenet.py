import pytest
import torch
from torch import nn

import surge
from surge.errors import ConfigError
from surge.models import bireal_resnet18, reactnet_resnet18, recu_resnet18
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


def on_meta(build, **options):
    with torch.device("meta"):
        return build(**options)


def test_reactnet_resnet18_adds_the_published_number_of_parameters():
    bireal, reactnet = on_meta(bireal_resnet18), on_meta(reactnet_resnet18)
    surge.binarize_(reactnet, "reactnet", skip=("*downsample*",))
    count = sum(p.numel() for p in reactnet.parameters())
    assert count - sum(p.numel() for p in bireal.parameters()) == 14_912
    assert sum(p.numel() for p in on_meta(reactnet_resnet18, moved=True).parameters()) == count


def test_reactnet_block_is_the_formula_of_recipes():
    block = OneConvBlock(4, 4, 1, "rprelu", moved=True)
    for parameter in block.parameters():
        nn.init.normal_(parameter)
    block.eval()
    x = torch.randn(2, 4, 6, 6)
    vector = {name: p.detach().view(-1, 1, 1) for name, p in block.named_parameters()}
    y = block.bn(block.conv(x + vector["move.shift"])) + x + vector["act.shift_in"]
    y = torch.where(y >= 0, y, vector["act.slope"] * y) + vector["act.shift_out"]
    torch.testing.assert_close(block(x), y)


@pytest.mark.parametrize("build", [bireal_resnet18, reactnet_resnet18])
def test_nothing_follows_the_stem(build):
    assert isinstance(build(classes=2).act1, nn.Identity)


def test_recu_resnet18_starts_with_quiet_norms_and_has_its_own_shortcut_and_head():
    model = recu_resnet18(classes=3)
    gammas = torch.cat([m.weight for m in model.modules() if isinstance(m, nn.BatchNorm2d)])
    assert torch.equal(gammas, torch.full_like(gammas, 1e-8))
    assert isinstance(model.bn2, nn.BatchNorm1d) and float(model.bn2.weight[0].detach()) == 1
    path = model.stages[1][0].downsample
    assert [type(part) for part in path] == [nn.Conv2d, nn.BatchNorm2d]
    assert path[0].stride == (2, 2)
    assert isinstance(model.act1, nn.Hardtanh) and isinstance(model.stages[3][3].act, nn.Hardtanh)
    assert model(torch.randn(2, 3, 64, 64)).shape == (2, 3)


@pytest.mark.parametrize("build", [reactnet_resnet18, recu_resnet18])
def test_every_form_has_16_convolutions_to_make_binary(build, inner_convs):
    assert sum(conv.weight.numel() for conv in inner_convs(on_meta(build))) == 10_985_472
