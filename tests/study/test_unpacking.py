"""A packed file as torch modules again."""

import json

import numpy as np
import pytest
import torch
from torch import nn

import surge
from surge.errors import ExportError
from surge.export import pack
from surge.layers import BinaryLinear
from surge.layers.hooks import binary_layers
from surge.models import cnn_digits, resnet20
from surge.study import unpacking
from surge.study.unpacking import workload_of
from tests.export.packing import assert_close, expected, settle
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


def vectors():
    layers = [nn.Linear(16, 24), nn.PReLU(24), BinaryLinear(24, 8, method="bnn"), nn.ReLU()]
    return nn.Sequential(*layers), (16,)


@pytest.mark.parametrize(
    "build",
    [
        lambda: digits("recu"),
        lambda: digits("xnor"),
        lambda: digits("reactnet"),
        lambda: residual("pool"),
        lambda: residual("slice"),
        lambda: residual("conv"),
        tokens,
        vectors,
    ],
    ids=["recu", "xnor", "reactnet", "pool", "slice", "conv", "tokens", "vectors"],
)
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


def test_between_is_a_line_with_the_same_sign():
    low = np.array([-np.inf, 2.0, -np.inf, np.inf], dtype=np.float32)
    high = np.array([3.0, np.inf, np.inf, -np.inf], dtype=np.float32)
    entry = {"kind": "between", "low": "a", "high": "b"}
    line = unpacking.Vectors({"a": low, "b": high}, real=False).activation(entry)
    for value in (-5.0, 1.9, 2.0, 3.0, 3.1):
        found = line(torch.full((1, 4, 1, 1), value)).flatten() >= 0
        wanted = (low <= value) & (value <= high)
        assert found.tolist() == wanted.tolist(), value


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"op": "polish"}, 'operator "polish"'),
        ({"activation": {"kind": "gelu"}}, 'activation "gelu"'),
        ({"weight_bits": 2}, "few bits"),
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
