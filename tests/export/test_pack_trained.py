"""The engine's contract on real images: trained digits have torch's classes, method by method."""

from functools import cache

import pytest
import torch

import surge
from surge.data import load_digits
from surge.export import pack
from surge.models import cnn_digits
from surge.summary import summary
from surge.train.norms import recalibrate_norms
from tests.contract.flags import named
from tests.export.packing import expected, small_resnet
from tests.nets import METHODS, binarized, train

EPOCHS, STEPS, BATCH = 3, 8, 48
SAME, POINTS = 0.999, 0.05
"""The least share of images with torch's class, and the most that accuracy may differ by."""


def plain():
    return cnn_digits(width=16)


def residual():
    return small_resnet((8, 16), classes=10)


@cache
def digits(split, channels):
    """All real digits of a part, as normalised images of so many equal channels."""
    part = load_digits(split)
    mean, std = part.normalization.constants()
    images = (part.images.float() - mean) / std
    return images.expand(-1, channels, -1, -1).contiguous(), part.labels


def trained(network, channels, method, options):
    """Some steps on real digits, schedules run to their end, norms of the weights of inference."""
    torch.manual_seed(0)
    model = binarized(network(), method, **options)
    images, labels = digits("train", channels)
    surge.initialize_(model, images[:BATCH])
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    batches = list(zip(images.split(BATCH), labels.split(BATCH), strict=True))
    for epoch in range(EPOCHS):
        surge.on_epoch(model, epoch, EPOCHS)
        train(model, optimizer, batches[epoch * STEPS : (epoch + 1) * STEPS])
    surge.on_epoch(model, EPOCHS, EPOCHS)
    recalibrate_norms(model, [batch for batch, _ in batches[:STEPS]])
    return model


@pytest.mark.parametrize(("network", "channels"), [(plain, 1), (residual, 3)])
@pytest.mark.parametrize(
    ("method", "options"), named([*((m, {}) for m in METHODS), ("dsq", {"learn_interval": True})])
)
def test_engine_gives_trained_digits_torchs_classes(
    engine, tmp_path, method, options, network, channels
):
    model = trained(network, channels, method, options)
    images, labels = digits("test", channels)
    packed = pack(model, images[:1], tmp_path / "m.surge", rest="fp32")
    counted = summary(model, images[:1], rest="fp32").bytes
    assert packed.tensor_bytes + packed.folded_bytes == counted
    found = engine.load(packed.path).run(images.numpy()).argmax(1)
    wanted, labels = expected(model, images).argmax(1), labels.numpy()
    right, wished = (100 * (classes == labels).mean() for classes in (found, wanted))
    assert len(labels) == 359 and wished > 20  # by chance 10
    assert (found == wanted).mean() >= SAME and abs(right - wished) <= POINTS
