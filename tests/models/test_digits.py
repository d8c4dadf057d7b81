import pytest
import torch
from torch import nn

from surge.data import ResidentLoader, load_digits
from surge.errors import ConfigError
from surge.models import cnn_digits


def test_cnn_digits_has_two_inner_convs_of_the_documented_size(inner_convs):
    inner = inner_convs(cnn_digits())
    assert [(conv.in_channels, conv.out_channels) for conv in inner] == [(32, 32), (32, 64)]
    assert sum(conv.weight.numel() for conv in inner) == 27_648


@pytest.mark.parametrize("activation", ["hardtanh", "relu", "none"])
def test_cnn_digits_maps_images_to_logits(activation):
    model = cnn_digits(4, width=8, activation=activation)
    assert model(torch.randn(3, 1, 8, 8)).shape == (3, 4)
    assert model.fc.in_features == 16


def test_cnn_digits_first_and_last_weighted_layers_are_stem_and_head():
    weighted = [
        name for name, m in cnn_digits().named_modules() if isinstance(m, nn.Conv2d | nn.Linear)
    ]
    assert weighted == ["features.conv1", "features.conv2", "features.conv3", "fc"]


def test_cnn_digits_compiles_as_one_graph():
    model = cnn_digits(width=8).eval()
    images = torch.randn(2, 1, 8, 8)
    compiled = torch.compile(model, fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(compiled(images), model(images))


def test_cnn_digits_refuses_bad_sizes():
    with pytest.raises(ConfigError, match="width=0"):
        cnn_digits(width=0)
    with pytest.raises(ConfigError, match="classes=0"):
        cnn_digits(0)


def test_cnn_digits_learns_the_real_digits():
    model = cnn_digits(width=16)
    train = ResidentLoader(load_digits("train"), batch_size=64, shuffle=True)
    test = ResidentLoader(load_digits("test"), batch_size=128)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    for epoch in range(4):
        for images, labels in train.batches(epoch):
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(images), labels).backward()
            optimizer.step()
    model.eval()
    with torch.no_grad():
        right = sum((model(images).argmax(1) == labels).sum() for images, labels in test)
    assert right / 359 > 0.95
