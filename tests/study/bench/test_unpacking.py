"""A packed file as torch modules again."""

import json

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

import surge
from surge.errors import ExportError
from surge.export import pack
from surge.layers import BinaryLinear
from surge.layers.hooks import binary_layers
from surge.models import cnn_digits, resnet20
from surge.study.bench import unpacking
from surge.study.bench.unpacking import workload_of
from tests.export.packing import Applies, assert_close, expected, settle
from tests.runtime.building import import_engine


def digits(method):
    model = cnn_digits(width=8)
    surge.binarize_(model, method)
    return model, (1, 8, 8)


def residual(shortcut):
    model = resnet20(shortcut=shortcut)
    surge.binarize_(model, "recu", skip=("*downsample*",) if shortcut == "conv" else ())
    return model, (3, 32, 32)


def tokens():
    layers = [BinaryLinear(16, 24, method="bireal"), BinaryLinear(24, 8, method="bireal")]
    return nn.Sequential(*layers), (5, 16)


def dilated():
    layers = [nn.Conv2d(2, 6, 3), nn.Conv2d(6, 8, 3, dilation=2, padding=3), nn.BatchNorm2d(8)]
    model = nn.Sequential(*layers, nn.Flatten(), nn.Linear(8 * 64, 5))
    surge.binarize_(model, "xnor")
    return model, (2, 8, 8)


def sequence():
    layers = [nn.Conv1d(3, 8, 3), nn.Conv1d(8, 8, 3, bias=False), nn.BatchNorm1d(8)]
    model = nn.Sequential(*layers, nn.Flatten(), nn.Linear(8 * 5, 4))
    surge.binarize_(model, "bnn")
    return model, (3, 9)


def vectors():
    layers = [nn.Linear(16, 24), nn.PReLU(24), BinaryLinear(24, 8, method="bnn"), nn.ReLU()]
    return nn.Sequential(*layers), (16,)


NETWORKS = {
    "recu": lambda: digits("recu"),
    "xnor": lambda: digits("xnor"),
    "reactnet": lambda: digits("reactnet"),
    "rbnn": lambda: digits("rbnn"),
    "pool": lambda: residual("pool"),
    "slice": lambda: residual("slice"),
    "conv": lambda: residual("conv"),
    "dilated": dilated,
    "sequence": sequence,
    "tokens": tokens,
    "vectors": vectors,
}


@pytest.mark.parametrize("build", NETWORKS.values(), ids=NETWORKS)
def test_rebuilt_network_computes_what_the_file_does(build, tmp_path):
    engine = import_engine()
    model, shape = build()
    x = torch.randn(3, *shape)
    settle(model, x)
    path = tmp_path / "net.surge"
    pack(model, x[:1], path, rest="fp32")
    work = workload_of(path)
    assert work.name == "net" and work.example.shape == (1, *shape)
    assert_close(expected(work.binary, x), engine.load(path).run(x.numpy()))
    binary = [layer.weight.shape for _, layer in binary_layers(work.binary)]
    assert len(binary) == len(list(binary_layers(model)))
    # The float twin has real layers of the same shapes, and no signs.
    assert not list(binary_layers(work.floating))
    assert expected(work.floating, x).shape == expected(model, x).shape
    real = [m.weight.shape for m in work.floating.modules() if isinstance(m, nn.Conv2d)]
    assert all(real.count(one) >= binary.count(one) for one in binary)


@pytest.mark.parametrize(
    ("method", "options"),
    [
        *((method, {}) for method in surge.list_methods() if method != "binaryconnect"),
        ("dorefa", {"weight_bits": 4, "input_bits": 4}),
        ("dorefa", {"weight_bits": 2}),
    ],
)
def test_files_of_every_method_are_rebuilt(method, options, tmp_path):
    engine = import_engine()
    model = cnn_digits(width=8)
    surge.binarize_(model, method, **options)
    x = torch.randn(3, 1, 8, 8)
    pack(settle(model, x), x[:1], tmp_path / "net.surge")
    work = workload_of(tmp_path / "net.surge")
    wanted = engine.load(tmp_path / "net.surge").run(x.numpy())
    assert_close(expected(work.binary, x), wanted)
    assert np.isfinite(expected(work.floating, x)).all()


def test_gates_and_moved_pixels_are_rebuilt(tmp_path):
    engine = import_engine()
    torch.manual_seed(0)
    gated = Applies(lambda x: F.silu(F.pad(x, (1, 0, -1, 2))).flatten(2).unflatten(2, (7, -1)))
    pools = [nn.ChannelShuffle(4), nn.MaxPool2d(2, ceil_mode=True), nn.AvgPool2d(3, ceil_mode=True)]
    layers = [nn.Conv2d(3, 8, 3), gated, *pools, nn.Flatten(), nn.Linear(8 * 4, 4)]
    model, x = nn.Sequential(*layers).eval(), torch.randn(3, 3, 8, 8)
    pack(model, x[:1], tmp_path / "m.surge")
    work = workload_of(tmp_path / "m.surge")
    assert_close(expected(work.binary, x), engine.load(tmp_path / "m.surge").run(x.numpy()))


def test_layer_on_pixels_is_rebuilt_with_its_bytes(tmp_path):
    engine = import_engine()
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.Flatten(), nn.Linear(8 * 64, 4)).eval()
    scale = {"mean": [0.4, 0.5, 0.6], "std": [0.2, 0.25, 0.3], "maximum": 255}
    pack(model, torch.zeros(1, 3, 8, 8), tmp_path / "m.surge", rest="int8", preprocessing=scale)
    loaded, work = engine.load(tmp_path / "m.surge"), workload_of(tmp_path / "m.surge")
    pixels = np.random.default_rng(0).integers(0, 256, (4, 8, 8, 3), dtype=np.uint8)
    x = torch.from_numpy(loaded.preprocess(pixels))
    assert_close(expected(work.binary, x), loaded.run(x.numpy()))
    # The twin has the rounded weights, but neither bytes nor a rounded border.
    difference = expected(work.floating, x) - expected(model, x)
    assert np.linalg.norm(difference) < 0.03 * np.linalg.norm(expected(model, x))


def test_between_is_a_line_with_the_same_sign():
    most = np.finfo(np.float32).max  # what an open end is as a number
    low = np.array([-np.inf, 2.0, -np.inf, np.inf, -most, most], dtype=np.float32)
    high = np.array([3.0, np.inf, np.inf, -np.inf, 3.0, -most], dtype=np.float32)
    entry = {"kind": "between", "low": "a", "high": "b"}
    line = unpacking.Vectors({"a": low, "b": high}, real=False).activation(entry)
    for value in (-5.0, 1.9, 2.0, 3.0, 3.1):
        found = line(torch.full((1, 6, 1, 1), value)).flatten() >= 0
        wanted = (low <= value) & (value <= high)
        assert found.tolist() == wanted.tolist(), value


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"op": "polish"}, 'operator "polish"'),
        ({"activation": {"kind": "gelu"}}, 'activation "gelu"'),
    ],
)
def test_what_is_not_rebuilt_is_named(change, message, tmp_path):
    path = tmp_path / "net.surge"
    pack(nn.Linear(8, 4).eval(), torch.zeros(1, 8), path, rest="fp32")
    content = path.read_bytes()
    size = int.from_bytes(content[:8], "little")
    graph = json.loads(json.loads(content[8 : 8 + size])["__metadata__"]["graph"])
    graph["nodes"][0].update(change)
    from safetensors.numpy import load

    with pytest.raises(ExportError, match=message):
        unpacking.PackedNetwork(graph, load(content), real=False)
