"""The networks that ship: packed output against torch, in every tier."""

import numpy as np
import pytest
import torch

from surge.models import build_model
from tests.export.packing import (
    assert_close,
    expected,
    packed_output,
    rounded_weights,
    settle,
)
from tests.nets import binarized

SHAPES = {
    "cnn_digits": (1, 8, 8),
    "resnet20": (3, 32, 32),
    "vgg_small": (3, 32, 32),
    "resnet18_cifar": (3, 32, 32),
}
METHODS = ("bnn", "recu", "bireal", "reactnet", "irnet", "xnor")


def network(name, method, *, batch=3, seed=0, **options):
    torch.manual_seed(seed)
    x = torch.randn(batch, *SHAPES[name])
    return settle(binarized(build_model(name, **options), method), x), x


@pytest.mark.parametrize("method", METHODS)
def test_digits_network_gives_torchs_output(engine, tmp_path, method):
    model, x = network("cnn_digits", method, batch=7)
    actual = packed_output(engine, model, x, tmp_path / "m.surge")
    assert_close(actual, expected(model, x))


@pytest.mark.parametrize("name", ["resnet20", "vgg_small", "resnet18_cifar"])
def test_cifar_network_gives_torchs_output(engine, tmp_path, name):
    model, x = network(name, "recu")
    actual = packed_output(engine, model, x, tmp_path / "m.surge")
    wanted = expected(model, x)
    assert_close(actual, wanted)
    assert np.array_equal(actual.argmax(1), wanted.argmax(1))


@pytest.mark.parametrize("shortcut", ["slice", "conv"])
def test_every_shortcut_of_resnet20_packs(engine, tmp_path, shortcut):
    model, x = network("resnet20", "bireal", shortcut=shortcut)
    assert_close(packed_output(engine, model, x, tmp_path / "m.surge"), expected(model, x))


def test_float_network_packs_too(engine, tmp_path):
    torch.manual_seed(0)
    x = torch.randn(2, 1, 8, 8)
    model = settle(build_model("cnn_digits", activation="relu"), x)
    assert_close(packed_output(engine, model, x, tmp_path / "m.surge"), expected(model, x))


def test_half_precision_weights_are_rounded_once(engine, tmp_path):
    model, x = network("cnn_digits", "recu", batch=7)
    actual = packed_output(engine, model, x, tmp_path / "m.surge", rest="fp16")
    with rounded_weights(model, lambda w: w.half().float()):
        assert_close(actual, expected(model, x))


def test_int8_weights_have_one_step_per_filter(engine, tmp_path):
    def to_steps(w):
        step = w.abs().flatten(1).amax(1).view(-1, *(1 for _ in w.shape[1:])) / 127
        return (w / step).round() * step

    model, x = network("cnn_digits", "recu", batch=7)
    actual = packed_output(engine, model, x, tmp_path / "m.surge", rest="int8")
    with rounded_weights(model, to_steps):
        assert_close(actual, expected(model, x))


def test_first_layer_in_whole_numbers_takes_pixels_as_they_are(engine, tmp_path):
    """Against torch with the same rounded weights: whole pixels lose nothing on the way."""
    facts = {"mean": [0.49, 0.48, 0.45], "std": [0.25, 0.24, 0.26], "maximum": 255.0}
    torch.manual_seed(0)
    stem = torch.nn.Conv2d(3, 20, 3, stride=2)
    model = torch.nn.Sequential(stem, torch.nn.Flatten()).eval()
    mean, std = (torch.tensor(facts[key])[:, None, None] for key in ("mean", "std"))
    x = (torch.randint(0, 256, (3, 3, 11, 9)) / 255 - mean) / std
    path = tmp_path / "m.surge"
    actual = packed_output(engine, model, x, path, rest="int8", preprocessing=facts)
    with torch.no_grad():
        scaled = stem.weight / std
        step = scaled.abs().amax(dim=(1, 2, 3), keepdim=True) / 127
        stem.weight.copy_((scaled / step).round() * step * std)
    assert_close(actual, expected(model, x))


def test_first_layer_in_whole_numbers_is_the_same_in_every_tier(engine, tmp_path):
    facts = {"mean": [0.5, 0.4, 0.6], "std": [0.25, 0.2, 0.3]}
    model, x = network("resnet20", "recu")
    packed_output(engine, model, x, tmp_path / "m.surge", rest="int8", preprocessing=facts)
    packed_output(engine, model, 100 * x, tmp_path / "m.surge", rest="int8", preprocessing=facts)


def test_packing_leaves_the_model_as_it_was(engine, tmp_path):
    model, x = network("cnn_digits", "reactnet")
    before = {key: value.clone() for key, value in model.state_dict().items()}
    wanted = expected(model, x)
    model.train()
    packed_output(engine, model, x, tmp_path / "m.surge")
    assert model.training and all(module.training for module in model.modules())
    assert all(torch.equal(value, before[key]) for key, value in model.state_dict().items())
    assert np.array_equal(expected(model.eval(), x), wanted)
