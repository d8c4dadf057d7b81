"""Small detectors and scenes for the tests of detection; all need the fixture ``torchvision``."""

import sys
from pathlib import Path

import torch

from surge.models import DetectorSettings

SMALL = DetectorSettings(
    channels=32,
    hidden=64,
    candidates=(200, 200),
    proposals=100,
    sampled_anchors=64,
    sampled_regions=64,
)
"""Fast enough for one core."""


def scene(count=2, size=96, classes=3, seed=0):
    """Noise with one or two bright rectangles per image, and their targets."""
    generator = torch.Generator().manual_seed(seed)
    images, targets = [], []
    for index in range(count):
        image = 0.3 * torch.randn(3, size, size - 8 * index, generator=generator)
        boxes, labels = [], []
        for _ in range(1 + index % 2):
            x, y = (torch.rand(2, generator=generator) * (size / 2 - 16)).tolist()
            w, h = (24 + torch.rand(2, generator=generator) * (size / 2 - 24)).tolist()
            label = int(torch.randint(1, classes + 1, (1,), generator=generator))
            image[(label - 1) % 3, int(y) : int(y + h), int(x) : int(x + w)] += 2.0
            boxes.append([x, y, x + w, y + h])
            labels.append(label)
        images.append(image)
        targets.append({"boxes": torch.tensor(boxes), "labels": torch.tensor(labels)})
    return images, targets


def search_path():
    """What PYTHONPATH must hold for a command in another process to find torchvision."""
    return str(Path(sys.prefix) / "vision")
