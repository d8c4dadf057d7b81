import math

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from surge.errors import ConfigError
from surge.models import resnet18_cifar, resnet20
from surge.models.parts import PadChannels, Subsample, shortcut_path
from surge.models.resnet import DoubleShortcutBlock, SingleShortcutBlock


def silence(norm):
    """Make a BatchNorm output zero, so that only the shortcut is left."""
    nn.init.zeros_(norm.weight)
    nn.init.zeros_(norm.bias)


@pytest.mark.parametrize(
    ("build", "convs", "weights", "mega_macs"),
    [(resnet20, 18, 267_264, 40.1), (resnet18_cifar, 16, 10_985_472, 547.4)],
)
def test_resnet_inner_convs_have_the_published_size(
    build, convs, weights, mega_macs, inner_convs, macs
):
    model = build()
    inner = inner_convs(model)
    assert len(inner) == convs
    assert sum(conv.weight.numel() for conv in inner) == weights
    found = macs(model, torch.zeros(1, 3, 32, 32), inner)
    assert found / 1e6 == pytest.approx(mega_macs, abs=0.05)


def test_resnet20_stem_and_head_have_the_published_size(macs):
    model = resnet20()
    assert model.conv1.weight.numel() == 432
    assert sum(p.numel() for p in model.fc.parameters()) == 650
    assert macs(model, torch.zeros(1, 3, 32, 32), [model.conv1]) == 442_368


@pytest.mark.parametrize("build", [resnet20, resnet18_cifar])
@pytest.mark.parametrize("shortcut", ["pool", "slice", "conv"])
@pytest.mark.parametrize("activation", ["hardtanh", "relu", "none"])
def test_resnet_maps_images_to_logits(build, shortcut, activation):
    model = build(7, shortcut=shortcut, activation=activation)
    logits = model(torch.randn(2, 3, 32, 32))
    assert logits.shape == (2, 7)
    logits.sum().backward()
    assert all(p.grad is not None for p in model.parameters())


@pytest.mark.parametrize("build", [resnet20, resnet18_cifar])
def test_resnet_first_and_last_weighted_layers_are_stem_and_head(build):
    model = build(shortcut="conv")
    weighted = [name for name, m in model.named_modules() if isinstance(m, nn.Conv2d | nn.Linear)]
    assert weighted[0] == "conv1"
    assert weighted[-1] == "fc"


def test_resnet_strided_blocks_open_every_stage_but_the_first():
    model = resnet20()
    strides = [[block.conv1.stride[0] for block in stage] for stage in model.stages]
    assert strides == [[1, 1, 1], [2, 1, 1], [2, 1, 1]]


def test_resnet_head_is_batchnorm_then_linear():
    model = resnet20().eval()
    model.bn2.running_mean.fill_(0.5)
    images = torch.randn(2, 3, 32, 32)
    body = model.stages(model.act1(model.bn1(model.conv1(images)))).mean((2, 3))
    assert isinstance(model.bn2, nn.BatchNorm1d)
    torch.testing.assert_close(model(images), model.fc(model.bn2(body)))


def test_resnet20_can_be_wider(inner_convs):
    twice = resnet20(width=32)
    assert [stage[0].conv2.out_channels for stage in twice.stages] == [32, 64, 128]
    assert sum(conv.weight.numel() for conv in inner_convs(twice)) == 4 * 267_264
    assert twice(torch.zeros(2, 3, 32, 32)).shape == (2, 10)
    with pytest.raises(ConfigError, match="width=0 is not accepted"):
        resnet20(width=0)


def test_resnet20_clamps_the_stem_and_resnet18_does_not():
    assert isinstance(resnet20().act1, nn.Hardtanh)
    assert isinstance(resnet18_cifar().act1, nn.Identity)
    assert isinstance(resnet18_cifar(activation="relu").act1, nn.ReLU)


def test_double_shortcut_block_without_convs_is_two_clamps_of_the_input():
    block = DoubleShortcutBlock(4, 4, 1, shortcut="pool", activation="hardtanh")
    silence(block.bn1)
    silence(block.bn2)
    x = 3 * torch.randn(2, 4, 6, 6)
    assert torch.equal(block(x), x.clamp(-1, 1))


def test_double_shortcut_block_has_a_shortcut_around_each_conv():
    block = DoubleShortcutBlock(4, 4, 1, shortcut="pool", activation="none")
    x = torch.randn(2, 4, 6, 6)
    silence(block.bn2)
    assert torch.equal(block(x), block.bn1(block.conv1(x)) + x)
    silence(block.bn1)
    assert torch.equal(block(x), x)


def test_single_shortcut_block_has_one_shortcut_around_both_convs():
    block = SingleShortcutBlock(4, 4, 1, shortcut="pool", activation="hardtanh")
    x = 3 * torch.randn(2, 4, 6, 6)
    silence(block.bn1)
    inner = block.bn2(block.conv2(torch.zeros_like(x)))
    torch.testing.assert_close(block(x), (inner + x).clamp(-1, 1))
    silence(block.bn2)
    assert torch.equal(block(x), x.clamp(-1, 1))


@pytest.mark.parametrize("block", [DoubleShortcutBlock, SingleShortcutBlock])
def test_block_leaves_its_input_and_saved_tensors_alone(block):
    block = block(4, 4, 1, shortcut="pool", activation="hardtanh")
    x = 3 * torch.randn(2, 4, 6, 6)
    before = x.clone()
    seen = []
    block.conv2.register_forward_hook(lambda _, args, __: seen.append((args[0], args[0].clone())))
    block(x)
    assert torch.equal(x, before)
    assert torch.equal(*seen[0])


def test_shortcut_pool_averages_and_pads_a_quarter_on_each_side():
    path = shortcut_path("pool", 4, 8, 2)
    x = torch.randn(2, 4, 6, 6)
    out = path(x)
    assert out.shape == (2, 8, 3, 3)
    torch.testing.assert_close(out[:, 2:6], F.avg_pool2d(x, 2))
    assert out[:, :2].abs().sum() == out[:, 6:].abs().sum() == 0
    assert not list(path.parameters())


def test_shortcut_slice_takes_every_second_pixel():
    x = torch.randn(2, 4, 6, 6)
    out = shortcut_path("slice", 4, 8, 2)(x)
    assert torch.equal(out[:, 2:6], x[:, :, ::2, ::2])
    assert out[:, :2].abs().sum() == out[:, 6:].abs().sum() == 0


def test_shortcut_conv_is_a_strided_1x1_with_batchnorm_named_downsample():
    model = resnet18_cifar(shortcut="conv")
    names = [name for name, m in model.named_modules() if getattr(m, "kernel_size", 0) == (1, 1)]
    assert names == [f"stages.{stage}.0.downsample.0" for stage in (1, 2, 3)]
    conv, norm = model.stages[1][0].downsample
    assert conv.stride == (2, 2)
    assert conv.bias is None
    assert isinstance(norm, nn.BatchNorm2d)


@pytest.mark.parametrize("kind", ["pool", "slice", "conv"])
def test_shortcut_is_the_identity_where_nothing_changes(kind):
    assert isinstance(shortcut_path(kind, 4, 4, 1), nn.Identity)


def test_pad_channels_splits_odd_numbers_and_refuses_to_shrink():
    assert PadChannels(2, 5)(torch.ones(1, 2, 1, 1)).flatten().tolist() == [0, 1, 1, 0, 0]
    assert "before=1, after=2" in repr(PadChannels(2, 5))
    assert "stride=2" in repr(Subsample(2))
    with pytest.raises(ConfigError, match="cannot shrink 5 channels to 2"):
        PadChannels(5, 2)


def test_resnet_convs_start_from_kaiming_fan_in():
    for conv in (m for m in resnet18_cifar(shortcut="conv").modules() if isinstance(m, nn.Conv2d)):
        expected = math.sqrt(2 / conv.weight[0].numel())
        error = 5 * expected / math.sqrt(2 * conv.weight.numel())
        assert conv.weight.std().item() == pytest.approx(expected, abs=error)
        assert abs(conv.weight.mean().item()) < 2 * error


def test_resnet_norms_and_head_keep_torch_defaults():
    model = resnet20()
    for module in model.modules():
        if isinstance(module, nn.BatchNorm2d | nn.BatchNorm1d):
            assert (module.weight == 1).all()
            assert (module.bias == 0).all()
    assert model.fc.weight.abs().max() <= 1 / math.sqrt(64)


@pytest.mark.parametrize("shortcut", ["pool", "slice", "conv"])
def test_resnet_keeps_channels_last(shortcut):
    model = resnet20(shortcut=shortcut).to(memory_format=torch.channels_last)
    formats = []
    for stage in model.stages:
        stage.register_forward_hook(
            lambda _, __, out: formats.append(out.is_contiguous(memory_format=torch.channels_last))
        )
    model(torch.randn(2, 3, 32, 32).to(memory_format=torch.channels_last))
    assert formats == [True, True, True]


@pytest.mark.parametrize("shortcut", ["pool", "slice", "conv"])
def test_resnet_compiles_as_one_graph(shortcut):
    model = resnet20(shortcut=shortcut)
    images = torch.randn(2, 3, 32, 32)
    expected = model(images)
    compiled = torch.compile(model, fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(compiled(images), expected)


@pytest.mark.parametrize("build", [resnet20, resnet18_cifar])
def test_resnet_names_the_near_miss_of_an_option(build):
    with pytest.raises(ConfigError, match=r"shortcut='pol'.*Did you mean .pool"):
        build(shortcut="pol")
    with pytest.raises(ConfigError, match=r"activation='hardtan'.*Did you mean .hardtanh"):
        build(activation="hardtan")
    with pytest.raises(ConfigError, match="classes=0"):
        build(0)
