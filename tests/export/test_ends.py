"""Models that take their tensor by name, or return it among others, as those of transformers do."""

import warnings

import numpy as np
import pytest
import torch
from torch import nn

import surge
from surge.errors import ExportError, SurgeWarning
from surge.export import to_onnx, to_openvino
from surge.models import cnn_digits
from tests.export.packing import assert_close, expected, settle

IMAGES = torch.randn(2, 1, 8, 8)
WRITERS = {"to_onnx": to_onnx, "to_openvino": to_openvino}
writers = pytest.mark.parametrize("write", WRITERS.values(), ids=WRITERS)


class Named(nn.Module):
    """Digits that are the second argument, and an output of any kind."""

    def __init__(self, output):
        super().__init__()
        self.net = cnn_digits(width=8)
        surge.binarize_(self.net, "bireal")
        settle(self.net, IMAGES)
        self.output = output

    def forward(self, scale=None, pixels=None):
        assert scale is None
        return self.output(self.net(pixels))


def onnx(path, x):
    import onnxruntime

    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    return session.run(None, {"input": x.numpy()})[0]


def openvino(path, x):
    import openvino

    exact = {"INFERENCE_PRECISION_HINT": "f32"}
    return np.array(openvino.Core().compile_model(path, "CPU", exact)(x.numpy())[0])


RUNS = {"to_onnx": onnx, "to_openvino": openvino}


@pytest.mark.parametrize("name", WRITERS)
@pytest.mark.parametrize(
    "output",
    [
        lambda y: y,
        lambda y: {"logits": y, "hidden": y + 1},
        lambda y: {"score": y, "loss": None},
        lambda y: (y,),
    ],
    ids=["tensor", "logits", "one-of-a-dict", "one-of-a-tuple"],
)
def test_one_tensor_goes_in_by_name_and_one_comes_out(name, output, tmp_path):
    model = Named(output).eval()
    written = WRITERS[name](model, {"pixels": IMAGES}, tmp_path / "model")
    assert_close(RUNS[name](written.path, IMAGES), expected(model.net, IMAGES))
    assert "forward" not in vars(model)


@writers
def test_several_outputs_are_refused_by_name_and_nothing_is_written(write, tmp_path):
    model = Named(lambda y: {"boxes": y, "scores": y})
    with pytest.raises(ExportError, match=r"a dict with 2 tensors \(boxes, scores\), not one"):
        write(model, {"pixels": IMAGES}, tmp_path / "model")
    assert not list(tmp_path.iterdir()) and "forward" not in vars(model)


def test_a_model_may_ask_a_binary_layer_for_its_sizes(tmp_path):
    class Asks(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.inner = nn.Conv2d(1, 8, 1), nn.Conv2d(8, 8, 3, stride=2, padding=1)
            self.last = nn.Conv2d(8, 2, 1)

        def forward(self, x):
            y = self.inner(self.first(x)) / self.inner.stride[0]
            return self.last(y * self.inner.in_channels)

    model = Asks()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", SurgeWarning)  # no norm
        surge.binarize_(model, "bireal")
    assert to_onnx(model, IMAGES, tmp_path / "model").difference < 1e-4


def test_image_models_of_transformers_export(tmp_path):
    from transformers import MobileNetV1Config, MobileNetV1ForImageClassification

    config = MobileNetV1Config(depth_multiplier=0.125, image_size=32)
    model = MobileNetV1ForImageClassification(config)
    surge.binarize_(model, "bireal")
    image = {"pixel_values": torch.randn(2, 3, 32, 32)}
    settle(model, image["pixel_values"])
    written = to_onnx(model, image, tmp_path / "model")
    with torch.no_grad():
        wanted = model(**image).logits.numpy()
    assert_close(onnx(written.path, image["pixel_values"]), wanted)
