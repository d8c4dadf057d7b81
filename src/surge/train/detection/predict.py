"""A trained detector on single pictures."""

import math
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor

from surge.data.imageset import IMAGENET
from surge.data.voc import CLASSES
from surge.data.voc_loader import fitted, scale_of
from surge.data.voc_metrics import Precision
from surge.errors import CheckpointMismatchError, ConfigError
from surge.models.detector import Detector
from surge.recipes.recipe import Recipe
from surge.train import checkpoint
from surge.train.build import load_trained_, make_loaders
from surge.train.detection.build import new_detector
from surge.train.detection.task import DetectionTask, DetectionTest
from surge.train.distributed import World
from surge.train.run import CONFIG, RunFolder


@dataclass(frozen=True)
class Found:
    """One object in a picture."""

    label: str
    score: float
    """From 0 to 1."""
    box: tuple[float, float, float, float]
    """x1, y1, x2, y2 in pixels of the picture."""


def load_detector(path: Path, device: torch.device) -> tuple[Recipe, Detector]:
    """Return the detector of a run, ready to look; runs that it began with are not needed.

    ``path`` is the folder of a run, or one of its checkpoints.

    Raises:
        CheckpointMismatchError: neither of both.
        ConfigError: a run, but not of a detector.
    """
    if not path.exists():
        raise CheckpointMismatchError(f"{path} is not there: name the folder of a run.")
    home = path.parent.parent if path.is_file() else path
    if path.is_file() and not (home / CONFIG).exists():
        raise CheckpointMismatchError(
            f"{path} is no checkpoint in the folder of a run: name that folder, or a file in its "
            "checkpoints/. A packed file has no detector in it, but its stages."
        )
    folder, recipe, _ = RunFolder.open(home)
    if recipe.data.name != "voc":
        raise ConfigError(f"{path} holds {recipe.name}, which is no detector; rows of voc are.")
    if path.is_file():
        state = checkpoint.load_one(path, recipe.name, device)
    else:
        state, _ = checkpoint.load_newest(folder.checkpoints, recipe.name, device)
    model = new_detector(recipe)
    load_trained_(model, state, recipe, path)
    return recipe, model.to(device).eval()


@dataclass(frozen=True)
class Detections:
    """How a run does on what it is tested on."""

    recipe: Recipe
    seed: int
    epochs: int
    """Epochs trained before the checkpoint was written."""
    images: int
    eleven: Precision
    """As VOC2007 counts."""
    area: Precision
    """As VOC counts since 2010."""

    def per_class(self) -> list[dict[str, object]]:
        """Return both precisions of every class; a class without objects has none."""
        both = zip(CLASSES, self.eleven.classes, self.area.classes, strict=True)
        return [
            {"class": name, "AP": _percent(eleven), "AP, area": _percent(area)}
            for name, eleven, area in both
        ]


def _percent(value: float) -> str | None:
    return None if math.isnan(value) else f"{value:.2f}"


def evaluate_detector(path: Path, root: Path, device: torch.device) -> Detections:
    """Test the newest checkpoint of a run; ``root`` is where data sets are."""
    recipe, model = load_detector(path, device)
    folder, _, environment = RunFolder.open(path)
    state, _ = checkpoint.load_newest(folder.checkpoints, recipe.name, torch.device("cpu"))
    task = DetectionTask()
    sets = task.load_sets(recipe.data, root)
    seed = int(environment["seed"])
    _, loader = make_loaders(recipe, sets, seed, device, World())
    step = task.test_step(recipe, model, loader, sets[1])
    assert isinstance(step, DetectionTest)
    plan = loader.plan(0)
    for index in range(len(loader)):
        step(loader.part(plan, index))
    eleven, area = step.precisions()
    return Detections(recipe, seed, int(state["epoch"]), len(sets[1]), eleven, area)


@torch.no_grad()
def look(model: Detector, pixels: Tensor, size: int, least: float) -> list[Found]:
    """Return what is in a picture uint8 ``[3, H, W]`` with a score of at least ``least``."""
    device = next(model.parameters()).device
    height, width = pixels.shape[1:]
    wide, high = fitted((width, height), scale_of(size))
    scale, shift = IMAGENET.constants(device)
    image = F.interpolate(
        pixels[None].to(device).float(), (high, wide), mode="bilinear", antialias=True
    )
    found = model([image[0] * scale + shift])[0]
    assert isinstance(found, dict)
    boxes = found["boxes"].cpu() / torch.tensor([wide / width, high / height] * 2)
    return [
        Found(CLASSES[label - 1], round(score, 4), (box[0], box[1], box[2], box[3]))
        for label, score, box in zip(
            found["labels"].tolist(), found["scores"].tolist(), boxes.tolist(), strict=True
        )
        if score >= least
    ]
