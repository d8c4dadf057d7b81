"""The body of a detector in the engine, the rest in torch."""

import numpy as np
import pytest
import torch

import surge
from surge.layers.hooks import binary_layers
from surge.models import detector_scope, reactnet_detector
from surge.models.pyramid import JoinedStages, pad_together
from surge.recipes import get_recipe
from tests.detectors import SMALL, scene
from tests.runtime.building import import_engine

pytestmark = pytest.mark.usefixtures("torchvision")


METHODS = ["reactnet", "lws", "ida", "dorefa-w4a4"]


@pytest.fixture(params=METHODS)
def detector(request):
    torch.manual_seed(0)
    detector = reactnet_detector(3, SMALL)
    method = get_recipe(f"voc-{request.param}").method
    surge.binarize_(detector, method.name, only=detector_scope("backbone"), **method.options)
    detector.train()
    with torch.no_grad():
        for seed in range(4):
            detector.pyramid(scene(seed=seed)[0])  # real statistics in the BatchNorms
    return detector.eval()


def test_joined_stages_come_apart_again(detector):
    images = torch.randn(2, 3, 64, 96)
    with torch.no_grad():
        whole = JoinedStages(detector.backbone)(images)
        stages = detector.backbone.stages(images)
    for ours, theirs in zip(JoinedStages.parted(whole, 64, 96), stages, strict=True):
        assert torch.equal(ours, theirs)


@pytest.fixture(scope="session")
def engine():
    return import_engine()


def test_packed_body_gives_the_stages_of_torch(engine, detector, tmp_path):
    """As torch computes them in float64: in float32 its own rounding turns signs over."""
    images = pad_together(scene()[0]).tensors
    path = tmp_path / "body.surge"
    surge.pack(JoinedStages(detector.backbone), images[:1], path)
    assert path.stat().st_size < 7e6  # 44.7 MB in fp32, 1 or 4 bits here
    packed = surge.load_packed(path)
    vectors = np.concatenate([packed(image[None].numpy()) for image in images])
    stages = JoinedStages.parted(torch.from_numpy(vectors), *images.shape[2:])
    with torch.no_grad():
        expected = detector.double().backbone.stages(images.double())
    few_bits = any(layer.method.bits[1] > 1 for _, layer in binary_layers(detector))
    for number, (ours, theirs) in enumerate(zip(stages, expected, strict=True)):
        # A value of 4 bits may be rounded to its neighbour, and later stages repeat that.
        most = 0.03 if few_bits and number else 1e-5
        assert (ours - theirs).abs().max() < most * theirs.abs().max()
