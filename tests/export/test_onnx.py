"""to_onnx: plain operators, torch's output, and no trace of training."""

import sys

import numpy as np
import pytest
import torch
from torch import nn

import surge
from surge.errors import ExportError, MissingDependencyError
from surge.export import to_onnx
from surge.export.deploy import deployed, is_exact
from surge.layers import BinaryConv1d, BinaryConv2d, BinaryEmbedding, BinaryLinear
from surge.layers.hooks import binary_layers
from surge.method import list_methods
from surge.models import cnn_digits, resnet20
from tests.export.packing import assert_close, expected, settle
from tests.nets import CENTRED


def run(path, x):
    import onnxruntime

    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    (result,) = session.run(None, {"input": x.numpy()})
    return result


def digits(method, x, **options):
    model = cnn_digits(width=8)
    surge.binarize_(model, method, **options)
    return settle(model, x)


@pytest.fixture
def images():
    x = torch.randn(5, 1, 8, 8)
    x[1] = 0
    return x


@pytest.mark.parametrize("method", ["recu", "tbn", *CENTRED])
def test_onnx_runs_as_torch_does(method, images, tmp_path):
    import onnx

    model = digits(method, images)
    before = {key: value.clone() for key, value in model.state_dict().items()}
    written = to_onnx(model, images[:2], tmp_path / "model")
    assert written.path == tmp_path / "model.onnx"
    assert written.file_bytes == written.path.stat().st_size
    assert f"{written.file_bytes:,} bytes" in str(written) and written.difference < 1e-4
    proto = onnx.load(written.path)
    onnx.checker.check_model(proto)
    assert {node.domain for node in proto.graph.node} == {""} and not proto.functions
    assert "Sign" not in written.operators
    # Any batch, not only the example's.
    for x in (images, images[:1]):
        assert_close(run(written.path, x), expected(model, x))
    for key, value in model.state_dict().items():
        assert torch.equal(value, before[key]), key


def test_onnx_keeps_the_sign_of_zero(tmp_path):
    layer = BinaryConv2d(8, 8, 3, padding=1, bias=False, method="bnn")
    x = torch.randn(1, 8, 4, 4)
    x[:, ::2] = 0
    x[:, 1] = -0.0
    written = to_onnx(layer, x, tmp_path / "layer.onnx")
    np.testing.assert_array_equal(run(written.path, x), expected(layer, x))


def test_onnx_holds_no_latent_weights(images, tmp_path):
    import onnx
    from onnx import numpy_helper

    model = digits("rbnn", images)
    proto = onnx.load(to_onnx(model, images, tmp_path / "model.onnx").path)
    stored = {i.name: numpy_helper.to_array(i) for i in proto.graph.initializer}
    latent = model.features.conv2.weight.detach().numpy()
    assert not any(a.shape == latent.shape and np.allclose(a, latent) for a in stored.values())
    parameters = sum(p.numel() for n, p in model.named_parameters() if ".method." not in n)
    assert sum(a.size for a in stored.values()) < 1.1 * parameters


def test_onnx_of_a_residual_network(tmp_path):
    model = resnet20()
    surge.binarize_(model, "bireal")
    x = torch.randn(2, 3, 32, 32)
    settle(model, x)
    written = to_onnx(model, x, tmp_path / "resnet.onnx")
    # A value within rounding of zero may change its sign in one of eighteen layers.
    found, wanted = run(written.path, x), expected(model, x)
    assert np.abs(found - wanted).mean() < 0.05 * np.abs(wanted).max()


@pytest.mark.parametrize("method", list_methods())
def test_deployed_layers_compute_what_the_layer_does(method):
    options = {"bias": True, "method": method}
    layers = [
        (BinaryConv2d(4, 6, 3, padding=1, stride=2, groups=2, **options), torch.randn(3, 4, 7, 7)),
        (BinaryConv1d(4, 6, 3, dilation=2, **options), torch.randn(3, 4, 9)),
        (BinaryLinear(8, 5, **options), torch.randn(3, 8)),
    ]
    for layer, x in layers:
        x[0].flatten()[::3] = 0
        settle(layer, x)
        with torch.no_grad():
            torch.testing.assert_close(deployed(layer, "test")(x), layer(x))


def test_deployed_tells_signs_from_other_inputs():
    def exact(method, **options):
        return is_exact(BinaryConv2d(8, 8, 3, bias=False, method=method, method_options=options))

    assert exact("recu") and exact("xnor") and exact("dorefa")
    assert not any(map(exact, ("tbn", "binaryconnect", *CENTRED)))
    assert not exact("dorefa", input_bits=4) and not exact("dorefa", weight_bits=4)
    assert not exact("dorefa", unit_inputs=True)


def test_deployed_embedding_and_shared_layers():
    shared = BinaryLinear(8, 8, method="bireal")
    table = BinaryEmbedding(10, 8, method="bireal")
    model = nn.Sequential(table, shared, nn.Tanh(), shared).eval()
    network = deployed(model, "test")
    assert network[1] is network[3] and type(network[0]) is nn.Embedding
    tokens = torch.randint(0, 10, (2, 5))
    torch.testing.assert_close(network(tokens), model(tokens))


def test_compensated_model_is_refused(tmp_path, images):
    model = cnn_digits()
    surge.binarize_(model, "recu")
    surge.compensate_(model)
    with pytest.raises(ExportError, match=r'"features.conv2" still has .*surge.strip_'):
        to_onnx(model, images, tmp_path / "model.onnx")
    assert not list(tmp_path.iterdir())


class Branching(nn.Module):
    def forward(self, x):
        return x * 2 if x.sum() > 0 else x


@pytest.mark.parametrize(
    ("model", "example", "message"),
    [
        (Branching(), torch.ones(1, 3), "torch.export cannot trace"),
        (nn.Linear(3, 3), torch.ones(3), "one tensor with a batch"),
        (nn.Linear(3, 3), "text", "one tensor with a batch"),
    ],
    ids=["branching", "no batch", "no tensor"],
)
def test_what_cannot_be_exported_is_an_error(model, example, message, tmp_path):
    with pytest.raises(ExportError, match=message):
        to_onnx(model, example, tmp_path / "model.onnx")


@pytest.mark.parametrize("package", ["onnx", "onnxruntime", "onnxscript"])
def test_missing_package_is_one_sentence(package, monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(
        MissingDependencyError, match=rf"{package}: pip install 'surge-bnn\[onnx\]'"
    ):
        to_onnx(nn.Linear(3, 3), torch.ones(1, 3), tmp_path / "model.onnx")


@pytest.mark.parametrize("pre", [True, False])
def test_what_hooks_do_is_exported(images, tmp_path, pre):
    model = digits("recu", images)
    (_, layer), *_ = binary_layers(model)
    if pre:
        layer.register_forward_pre_hook(lambda _module, args: (-args[0],))
    else:
        layer.register_forward_hook(lambda _module, _args, output: 0.5 - output)
    to_onnx(model, images, tmp_path / "m.onnx")
    assert_close(run(tmp_path / "m.onnx", images), expected(model, images))


def test_a_forward_of_its_own_is_refused_by_name(images, tmp_path):
    model = digits("recu", images)
    (name, layer), *_ = binary_layers(model)
    inner = layer.forward
    layer.forward = lambda x: -inner(x)
    with pytest.raises(ExportError, match=f'"{name}" has a forward of its own'):
        to_onnx(model, images, tmp_path / "m.onnx")
