"""The task of a detector: images with boxes, Faster R-CNN, mean average precision."""

from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from surge.compensation import Compensation
from surge.data import EpochPlan, ResidentLoader
from surge.data.voc import load_voc
from surge.data.voc_loader import BoxLoader, DecodedSet, decode, scale_of
from surge.data.voc_metrics import Precision, both_precisions
from surge.errors import ConfigError, DataNotFoundError
from surge.models.detections import Detections
from surge.models.detector import Detector
from surge.recipes.recipe import DataSpec, Recipe, TrainSpec
from surge.train.detection.build import build_detector, build_teacher
from surge.train.detection.objective import make_objective
from surge.train.parts import Place, layout_on
from surge.train.step import Objective, TestStep, Verdict
from surge.train.task import Task, compensated

TRAIN, TEST = "trainval", "test"
"""Lists of images to train on and to test on."""
TEST_BATCH = 16


class DetectionTest(TestStep):
    """Collects what is found in every image, and counts at the end."""

    def __init__(self, model: nn.Module, loader: BoxLoader, spec: TrainSpec) -> None:
        """Begin without detections."""
        super().__init__(model, loader, spec)
        self.boxes = loader
        self.found: list[tuple[list[int], Detections]] = []

    def __call__(self, part: EpochPlan) -> None:
        """Keep the detections of one batch on the device; the model must be in eval mode."""
        (images, _), _ = self.loader.fetch(part)
        kind, low = self.loader.device.type, self.dtype == torch.bfloat16
        assert isinstance(self.model, Detector)
        with torch.no_grad(), torch.autocast(kind, dtype=torch.bfloat16, enabled=low):
            found = self.model.look(images).found
        assert found is not None
        self.found.append((part.permutation.tolist(), found))

    def detections(self) -> list[dict[str, Tensor]]:
        """Return what was found since the last call, image by image, in pixels of the files."""
        found, self.found = self.found, []
        listed = {}
        for places, batch in found:
            for place, one in zip(places, batch.cpu().listed(), strict=True):
                listed[place] = {**one, "boxes": one["boxes"] / self.boxes.factors(place)}
        return [listed[place] for place in range(len(self.boxes.files))]

    def precisions(self) -> tuple[Precision, Precision]:
        """Return the precisions of VOC2007, and those of the later years."""
        files = self.boxes.files
        truths = [files.truth(place) for place in range(len(files))]
        return both_precisions(self.detections(), truths, len(files.classes))

    def verdict(self, metric: str) -> Verdict:
        """Return the mean of the former, and that of the latter beside it."""
        eleven, area = self.precisions()
        return Verdict(eleven.mean, None, {"map-area": area.mean})


def load_detection_sets(
    spec: DataSpec, root: Path, workers: int | None = None
) -> tuple[DecodedSet, DecodedSet]:
    """Return the images to train on and to test on, in memory."""
    train = load_voc(root, TRAIN)
    if spec.held_out:
        held = list(range(0, len(train), 10))
        test = train.subset(held)
        train = train.subset([place for place in range(len(train)) if place % 10])
    else:
        test = load_voc(root, TEST, ("2007",))
    if spec.limit is not None:
        train, test = (part.subset(range(min(spec.limit, len(part)))) for part in (train, test))
    tested = decode(test, workers)
    if all(difficult.all() for difficult in tested.files.difficult):
        raise DataNotFoundError(
            f"None of the {len(tested)} images of {root} to test on shows an object that counts: "
            "without one there is no precision. Objects that are marked as difficult do not count."
        )
    return decode(train, workers), tested


class DetectionTask(Task):
    """Images with boxes; every batch has other sizes and other proposals."""

    hits = None
    fixed = False
    measurable = False
    normed = False

    def load_sets(
        self, spec: DataSpec, root: Path, workers: int | None = None
    ) -> tuple[DecodedSet, DecodedSet]:
        """Return decoded images with their boxes."""
        return load_detection_sets(spec, root, workers)

    def remarks(self, sets: Any) -> list[str]:
        """Say on what is trained, and how many images show nothing that counts."""
        train, test = sets
        empty = f", {train.empty} of them without objects" if train.empty else ""
        return [f"{len(train)} images to train on{empty}; {len(test)} to test on"]

    def make_loaders(
        self, recipe: Recipe, sets: Any, seed: int, place: Place
    ) -> tuple[ResidentLoader, ResidentLoader]:
        """Put both sets on the device; all arms of one seed see the same order and sizes."""
        if place.world > 1:
            raise ConfigError(f"{recipe.name} trains in one process; drop torchrun.")
        spec = recipe.data
        assert spec.size is not None
        # Pixels stay exact; only products are in short numbers.
        shared: dict[str, Any] = {
            "device": place.device,
            "dtype": torch.promote_types(place.dtype, torch.float32),
            "memory_format": place.memory_format,
        }
        train = BoxLoader(
            sets[0],
            [scale_of(factor * spec.size) for factor in spec.sizes],
            batch_size=min(recipe.train.batch, len(sets[0])),
            seed=seed,
            train=True,
            mirror=spec.augment,
            repeat=spec.repeat,
            **shared,
        )
        batch = min(TEST_BATCH, len(sets[1]))
        return train, BoxLoader(sets[1], [scale_of(spec.size)], batch_size=batch, **shared)

    def example(self, recipe: Recipe, first: Any) -> Any:
        """Return one small image."""
        return ([torch.zeros(3, 64, 64)],)

    def build_network(
        self, recipe: Recipe, seed: int, example: Any
    ) -> tuple[nn.Module, Compensation | None]:
        """Build the detector; frozen stages have no auxiliary path."""
        model = build_detector(recipe, seed)
        return model, compensated(model, recipe, seed, example)

    def objective(
        self, recipe: Recipe, model: nn.Module, seed: int, device: torch.device
    ) -> Objective | None:
        """Return the detector's own losses, and its teacher's."""
        assert isinstance(model, Detector)
        teacher = build_teacher(recipe)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            if teacher is not None:
                teacher.to(device=device, memory_format=layout_on(device))  # type: ignore[call-overload]
            return make_objective(model, teacher, recipe.distill)

    def test_step(
        self, recipe: Recipe, model: nn.Module, loader: ResidentLoader, tested: Any
    ) -> TestStep:
        """Keep all detections: the metric is of a whole set."""
        assert isinstance(loader, BoxLoader)
        return DetectionTest(model, loader, recipe.train)
