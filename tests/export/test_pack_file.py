"""What is in the file: size, metadata, bits, checksum."""

import hashlib
import json
from itertools import pairwise

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from safetensors import safe_open
from safetensors.numpy import load_file
from torch import nn

import surge
from surge.errors import ConfigError
from surge.export import pack
from surge.models import build_model
from surge.summary import summary
from tests.export.packing import assert_close, expected
from tests.nets import binarized, cnn

METHODS = ("bnn", "recu", "bireal", "reactnet", "irnet", "xnor", "dorefa")
RESTS = ("fp32", "fp16", "int8")


def header_bytes(path):
    content = path.read_bytes()
    return 8 + int.from_bytes(content[:8], "little")


SIZES = [("cnn_digits", rest) for rest in RESTS] + [("resnet20", "int8"), ("vgg_small", "fp16")]


@pytest.mark.parametrize(("name", "rest"), SIZES)
def test_size_is_what_summary_says_plus_the_header(tmp_path, name, rest):
    x = torch.zeros(1, 1, 8, 8) if name == "cnn_digits" else torch.zeros(1, 3, 32, 32)
    model = binarized(build_model(name), "recu")
    packed = pack(model, x, tmp_path / "m.surge", rest=rest)
    assert packed.tensor_bytes == summary(model, x, rest=rest).bytes
    assert packed.file_bytes == (tmp_path / "m.surge").stat().st_size
    assert packed.file_bytes == packed.tensor_bytes + header_bytes(tmp_path / "m.surge")


@pytest.mark.parametrize(
    ("rest", "classes", "limit"), [("int8", True, 2_200_000), ("fp16", False, 1_800_000)]
)
def test_resnet18_is_as_small_as_promised(tmp_path, rest, classes, limit):
    model, x = build_model("bireal_resnet18"), torch.zeros(1, 3, 224, 224)
    binarized(model, "bireal", skip=("*downsample*",))
    if not classes:
        model.fc = nn.Identity()
    packed = pack(model, x, tmp_path / "m.surge", rest=rest)
    assert packed.tensor_bytes == summary(model, x, rest=rest).bytes
    assert packed.file_bytes <= limit


@pytest.mark.parametrize("norm", [True, False])
@pytest.mark.parametrize("method", METHODS)
def test_size_agrees_for_every_method_with_and_without_norm(tmp_path, method, norm):
    model, x = cnn(method, norm=norm), torch.zeros(1, 2, 6, 6)
    packed = pack(model, x, tmp_path / "m.surge", rest="int8")
    assert packed.tensor_bytes + packed.folded_bytes == summary(model, x, rest="int8").bytes


def test_bits_are_stored_without_gaps_channels_last(tmp_path):
    layer = surge.BinaryConv2d(3, 5, 3, bias=False, method="bnn")
    pack(layer, torch.zeros(1, 3, 4, 4), tmp_path / "m.surge")
    tensors = load_file(tmp_path / "m.surge")
    (name,) = [key for key in tensors if key.endswith("weight")]
    assert tensors[name].nbytes == -(-5 * 27 // 8)
    bits = np.unpackbits(tensors[name], bitorder="little")[: 5 * 27]
    wanted = (layer.weight >= 0).permute(0, 2, 3, 1).reshape(-1).numpy()
    assert np.array_equal(bits.astype(bool), wanted)


def test_metadata_says_what_the_file_is(engine, tmp_path):
    model = binarized(build_model("cnn_digits"), "recu")
    facts = {"mean": [0.5], "std": [0.25], "maximum": 16}
    names = [str(digit) for digit in range(10)]
    pack(
        model,
        torch.zeros(1, 1, 8, 8),
        tmp_path / "m.surge",
        preprocessing=facts,
        classes=names,
        accuracy=97.5,
    )
    with safe_open(tmp_path / "m.surge", "numpy") as file:
        metadata = file.metadata()
    assert (metadata["format"], metadata["version"], metadata["method"]) == ("surge", "1", "recu")
    loaded = engine.load(tmp_path / "m.surge")
    assert loaded.classes == names and float(loaded.metadata("accuracy")) == 97.5
    assert loaded.preprocessing == {"mean": [0.5], "std": [0.25], "maximum": 16.0}
    pixels = np.full((1, 8, 8, 1), 12, dtype=np.uint8)
    assert np.allclose(loaded.preprocess(pixels), (12 / 16 - 0.5) / 0.25)
    values = [node["output"] for node in json.loads(metadata["graph"])["nodes"]]
    assert all(int(a[1:]) < int(b[1:]) for a, b in pairwise(values))


def test_checksum_is_of_the_file_with_zeros_in_its_place(tmp_path):
    pack(nn.Linear(3, 2), torch.zeros(1, 3), tmp_path / "m.surge")
    content = (tmp_path / "m.surge").read_bytes()
    with safe_open(tmp_path / "m.surge", "numpy") as file:
        digest = file.metadata()["checksum"].encode()
    assert content.count(digest) == 1
    assert hashlib.sha256(content.replace(digest, b"0" * 64)).hexdigest().encode() == digest


def test_packing_again_gives_the_same_bytes(tmp_path):
    """Ten times, as safetensors shuffles the metadata anew each time."""
    model, x = cnn("irnet"), torch.zeros(1, 2, 6, 6)
    for number in range(10):
        pack(model, x, tmp_path / f"{number}.surge")
    assert len({path.read_bytes() for path in tmp_path.iterdir()}) == 1


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"rest": "fp8"}, 'rest="fp8" is not known'),
        ({"classes": ["a"]}, "1 names, but the model has 2 outputs"),
        ({"preprocessing": {"mean": [0.0]}}, "preprocessing must be"),
        ({"preprocessing": {"mean": [0, 0, 0], "std": [1, 0, 1]}}, "preprocessing must be"),
        ({"preprocessing": {"mean": 0.5, "std": 0.5}}, "preprocessing must be"),
        (
            {"preprocessing": {"mean": [0, 0, 0], "std": [1, 1, float("nan")]}},
            "preprocessing must be",
        ),
    ],
)
def test_wrong_option_is_named_and_nothing_is_written(tmp_path, options, words):
    with pytest.raises(ConfigError, match=words):
        pack(nn.Linear(3, 2), torch.zeros(1, 3), tmp_path / "m.surge", **options)
    assert list(tmp_path.iterdir()) == []


def test_shared_layer_is_stored_once(engine, tmp_path):
    layer = surge.BinaryConv2d(8, 8, 3, padding=1, bias=False, method="bireal")
    x = torch.randn(2, 8, 5, 5)
    once = pack(nn.Sequential(layer), x, tmp_path / "a.surge")
    twice = pack(nn.Sequential(layer, layer), x, tmp_path / "b.surge")
    assert twice.tensor_bytes == once.tensor_bytes and len(twice.operators) == 2


@pytest.mark.parametrize("scale", [{"maximum": 1.0}, {"mean": [1.5] * 3}])
def test_pixels_that_are_no_bytes_stay_real_numbers(engine, tmp_path, scale):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.Flatten(), nn.Linear(8 * 36, 4)).eval()
    known = {"mean": [0.5] * 3, "std": [0.25] * 3, "maximum": 255.0} | scale
    x = (torch.rand(4, 3, 8, 8) - known["mean"][0]) / 0.25
    pack(model, x, tmp_path / "m.surge", rest="int8", preprocessing=known)
    found = torch.as_tensor(engine.load(tmp_path / "m.surge")(x.numpy()))
    assert (found - model(x)).norm() < 0.03 * model(x).norm()


class Tied(nn.Module):
    """A table whose rows the last layer multiplies with, too; and a turned copy of a weight."""

    def __init__(self):
        super().__init__()
        self.table, self.norm = nn.Embedding(20, 8), nn.LayerNorm(8)
        self.body, self.out = surge.BinaryLinear(8, 8, method="bnn"), nn.Linear(8, 20, bias=False)
        self.out.weight = self.table.weight
        self.square = nn.Linear(20, 20)

    def forward(self, words):
        y = self.square(self.out(self.norm(self.body(self.table(words)))))
        return F.linear(y, self.square.weight.T)


@pytest.mark.parametrize(("rest", "width"), [("fp32", 4), ("fp16", 2)])
def test_tied_weights_are_stored_once(engine, tmp_path, rest, width):
    torch.manual_seed(0)
    model, words = Tied().eval(), torch.randint(20, (3, 5))
    packed = pack(model, words, tmp_path / "m.surge", rest=rest)
    turned = model.square.weight.numel() * width
    assert packed.tensor_bytes == surge.summary(model, words, rest=rest).bytes + turned
    if rest == "fp32":
        assert_close(engine.load(tmp_path / "m.surge").run(words.numpy()), expected(model, words))
