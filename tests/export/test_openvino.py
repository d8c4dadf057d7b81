"""to_openvino: 1-bit convolutions that compute what torch does, and a list of those that cannot."""

import sys

import numpy as np
import pytest
import torch
from torch import nn

import surge
import surge.export.openvino as module
from surge.errors import ExportError, MissingDependencyError
from surge.export import to_openvino
from surge.layers import BinaryConv1d, BinaryConv2d, BinaryLinear
from surge.models import cnn_digits
from tests.export.packing import assert_close, expected, settle


def run(path, x):
    import openvino as ov

    core = ov.Core()
    model = core.read_model(path)
    model.reshape(list(x.shape))
    return core.compile_model(model, "CPU", {"INFERENCE_PRECISION_HINT": "f32"})(x.numpy())[0]


def operators(path):
    import openvino as ov

    return [node.get_type_name() for node in ov.Core().read_model(path).get_ordered_ops()]


def binary(inputs, outputs, **options):
    return BinaryConv2d(inputs, outputs, 3, **{"padding": 1, "bias": False, **options})


@pytest.mark.parametrize("method", ["xnor", "reactnet"])
def test_openvino_runs_as_torch_does(method, tmp_path):
    x = torch.randn(4, 1, 8, 8)
    x[1] = 0
    model = cnn_digits(width=16)
    surge.binarize_(model, method)
    settle(model, x)
    written = to_openvino(model, x[:1], tmp_path / "model")
    assert written.binary == ("features.conv2", "features.conv3") and not written.floats
    assert operators(written.path).count("BinaryConvolution") == 2
    assert_close(run(written.path, x), expected(model, x))
    files = [written.path, written.path.with_suffix(".bin")]
    assert written.file_bytes == sum(path.stat().st_size for path in files)
    assert f"{written.file_bytes:,} bytes, 2 1-bit convolutions" in str(written)


def test_chain_of_binary_layers_is_exact_with_zeros_and_negative_gammas(tmp_path):
    x = torch.randn(2, 24, 9, 7)
    x[:, ::3] = 0
    chain = nn.Sequential(
        binary(24, 13, stride=2, method="bnn"), nn.BatchNorm2d(13),
        nn.Conv2d(13, 8, 1), nn.Hardtanh(),
        binary(8, 40, padding=0, method="bnn"), nn.BatchNorm2d(40), nn.Hardtanh(),
        binary(40, 16, method="bnn"),
    )  # fmt: skip
    settle(chain, x)
    assert (chain[1].weight < 0).any()
    written = to_openvino(chain, x, tmp_path / "chain.xml")
    assert written.binary == ("0", "4", "7")
    np.testing.assert_array_equal(run(written.path, x), expected(chain, x))
    # 1 bit per weight on disk: 3 x 3 x (24 * 13 + 8 * 40 + 40 * 16) bits, and a little float.
    weights = 9 * (24 * 13 + 8 * 40 + 40 * 16)
    assert weights // 8 < written.path.with_suffix(".bin").stat().st_size < weights // 2


def test_layers_without_a_1_bit_form_stay_float_and_are_listed(tmp_path):
    x = torch.randn(2, 8, 8, 8)
    model = nn.Sequential(
        binary(8, 12, method="bnn"),
        binary(12, 8, method="bnn"),
        binary(8, 16, groups=2, method="bnn"),
        binary(16, 8, dilation=2, method="bnn"),
        nn.Flatten(2),
        BinaryConv1d(8, 4, 3, bias=False, method="bnn"),
        nn.Flatten(),
        BinaryLinear(4 * 34, 5, method="bnn"),
        BinaryLinear(5, 3, method="tbn"),
    )
    settle(model, x)
    written = to_openvino(model, x, tmp_path / "mixed.xml")
    assert written.binary == ("0",)
    assert dict(written.floats) == {
        "1": "12 input channels, not a multiple of 8",
        "2": "2 groups",
        "3": "dilation 2",
        "5": "only 2-d convolutions have a 1-bit kernel",
        "7": "only 2-d convolutions have a 1-bit kernel",
        "8": "tbn (1/2 bit) is not +-1 times +-1",
    }
    assert "float: 2 (2 groups)" in str(written)
    assert_close(run(written.path, x), expected(model, x))


def test_wrong_output_is_refused(tmp_path, monkeypatch):
    """Weight bits in the other order: the operator takes them and returns nonsense."""
    real = np.packbits
    monkeypatch.setattr(module.np, "packbits", lambda bits, bitorder: real(bits, bitorder="big"))
    x = torch.randn(1, 8, 8, 8)
    layer = binary(8, 8, method="bnn")
    with pytest.raises(ExportError, match="differs from torch's by .* nothing was written"):
        to_openvino(layer, x, tmp_path / "wrong.xml")
    assert not list(tmp_path.iterdir())


def test_missing_package_is_one_sentence(monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "openvino", None)
    with pytest.raises(MissingDependencyError, match=r"pip install 'surge-bnn\[onnx,openvino\]'"):
        to_openvino(nn.Linear(3, 3), torch.ones(1, 3), tmp_path / "model.xml")
