"""A float detector learns 20 real photographs by heart (minutes: run by hand)."""

import pytest
import torch

from surge.data import load_voc
from surge.models import DetectorSettings, float_detector
from tests.detectors import few_images, overfit

NARROW = DetectorSettings(
    channels=64,
    hidden=256,
    candidates=(300, 300),
    proposals=100,
    sampled_anchors=128,
    sampled_regions=128,
)


@pytest.mark.slow
@pytest.mark.usefixtures("torchvision")
@pytest.mark.timeout(1800)
def test_float_detector_overfits_twenty_photographs(voc_dir):
    files = few_images(load_voc(voc_dir, "trainval"))
    assert len(files) == 20
    torch.manual_seed(0)
    assert overfit(float_detector(20, NARROW), files, steps=350, rate=1e-3) > 90
