"""Small detectors and scenes for the tests of detection; all need the fixture ``torchvision``."""

import sys
from pathlib import Path

import torch

from surge.data import BoxLoader, average_precision
from surge.data.voc_loader import decode
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


def few_images(files, count=20, most=3):
    """The first images with one to ``most`` objects, none of them difficult or tiny."""

    def simple(index):
        width, height = files.sizes[index]
        boxes = files.boxes[index]
        sides = (boxes[:, 2:] - boxes[:, :2]) / torch.tensor([width, height])
        easy = not files.difficult[index].any()
        return easy and 1 <= len(boxes) <= most and bool((sides > 0.2).all())

    return files.subset([i for i in range(len(files)) if simple(i)][:count])


def overfit(detector, files, *, steps, rate=2e-3, scale=(160, 128), batch=4, seed=0):
    """Train on a few images alone; return the mean average precision on them, in percent."""
    loader = BoxLoader(decode(files), [scale], batch_size=len(files), device="cpu")
    (images, targets), _ = loader.fetch(loader.part(loader.plan(0), 0))
    pairs = list(zip(images, targets, strict=True))
    optimizer = torch.optim.AdamW(
        [p for p in detector.parameters() if p.requires_grad], lr=rate, weight_decay=1e-4
    )
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, rate, total_steps=steps)
    generator = torch.Generator().manual_seed(seed)
    detector.train()
    order = []
    for _ in range(steps):
        if len(order) < batch:
            order = torch.randperm(len(pairs), generator=generator).tolist()
        chosen, order = [pairs[i] for i in order[:batch]], order[batch:]
        losses = detector([image for image, _ in chosen], [target for _, target in chosen])
        optimizer.zero_grad()
        sum(losses.values()).backward()
        torch.nn.utils.clip_grad_norm_(detector.parameters(), 35.0)
        optimizer.step()
        schedule.step()
    return precision_on(detector, loader, images)


@torch.no_grad()
def precision_on(detector, loader, images):
    detector.eval()
    found = [detector([image])[0] for image in images]
    for place, objects in enumerate(found):
        objects["boxes"] = objects["boxes"] / loader.factors(place)
    files = loader.files
    truths = [files.truth(place) for place in range(len(files))]
    return average_precision(found, truths, len(files.classes)).mean
