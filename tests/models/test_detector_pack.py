"""The body of a detector in the engine, the rest in torch."""

import numpy as np
import pytest
import torch

import surge
from surge.models import detector_scope, reactnet_detector
from surge.models.pyramid import JoinedStages
from tests.detectors import SMALL, scene
from tests.runtime.building import import_engine

pytestmark = pytest.mark.usefixtures("torchvision")


@pytest.fixture
def detector():
    detector = reactnet_detector(3, SMALL)
    surge.binarize_(detector, "reactnet", only=detector_scope("backbone"))
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


def test_packed_body_gives_the_maps_of_torch(engine, detector, tmp_path):
    batch, maps = detector.pyramid(scene()[0])
    path = tmp_path / "body.surge"
    report = surge.pack(JoinedStages(detector.backbone), batch.tensors[:1], path)
    assert report is not None and path.stat().st_size < 4e6  # 44.7 MB in fp32
    packed = surge.load_packed(path)
    vectors = np.concatenate([packed(image[None].numpy()) for image in batch.tensors])
    stages = JoinedStages.parted(torch.from_numpy(vectors), *batch.tensors.shape[2:])
    with torch.no_grad():
        ours = detector.backbone.fpn(stages)
    for name, values in maps.items():
        difference = (ours[name] - values).abs()
        # A sign near zero may flip in the rounding of the float stream: few pixels, not the map.
        assert difference.median() < 1e-4 * values.abs().max()
        assert (difference > 0.05 * values.abs().max()).float().mean() < 0.01
