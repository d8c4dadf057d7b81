"""A trained run on its test images: which class was taken for which."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from surge.data.textset import TextSet
from surge.errors import CheckpointMismatchError, ConfigError
from surge.recipes.recipe import Recipe
from surge.train import checkpoint
from surge.train.build import alone, load_sets, load_trained_
from surge.train.loop import LoopOptions, Trainer
from surge.train.photos.loading import count_ranked
from surge.train.run import RunFolder


@dataclass(frozen=True, eq=False)
class Evaluation:
    """Counts of (true class, predicted class) over the test images of a run."""

    recipe: Recipe
    seed: int
    epochs: int
    """Epochs trained before the checkpoint was written."""
    classes: tuple[str, ...]
    confusion: Tensor
    """int64 ``[true, predicted]``."""
    notes: tuple[str, ...] = ()
    """A sentence for each damaged checkpoint that was passed over."""
    top5: float | None = None
    """Share of images whose class is among the five likeliest, in percent (photographs)."""

    @property
    def top1(self) -> float:
        """Share of images that were recognised, in percent."""
        return 100.0 * float(self.confusion.trace()) / float(self.confusion.sum())

    def per_class(self) -> list[dict[str, object]]:
        """Return for every class its images, its accuracy, and what it is mistaken for most."""
        rows: list[dict[str, object]] = []
        for index, name in enumerate(self.classes):
            counts = self.confusion[index].clone()
            images, hits = int(counts.sum()), int(counts[index])
            counts[index] = 0
            wrong = int(counts.argmax())
            most = f"{self.classes[wrong]} ({int(counts[wrong])})" if counts[wrong] else None
            rows.append(
                {
                    "class": name,
                    "images": images,
                    "top1": 100.0 * hits / images if images else None,
                    "mistaken for": most,
                }
            )
        return rows

    def rows(self) -> list[dict[str, object]]:
        """Return the counts, one row per true class and one column per prediction."""
        named = zip(self.classes, self.confusion.tolist(), strict=True)
        return [
            {"true": true, **dict(zip(self.classes, counts, strict=True))} for true, counts in named
        ]


def evaluate_run(path: Path, root: Path, device: torch.device) -> Evaluation:
    """Test the newest checkpoint of a run folder; ``root`` is where data sets are.

    Raises:
        CheckpointMismatchError: not a run folder, or one without a readable checkpoint.
    """
    folder, recipe, environment = RunFolder.open(path)
    trainer, notes = _at_newest(folder, recipe, environment, root, device)
    tested = trainer.sets[1]
    if isinstance(tested, TextSet):
        raise ConfigError(f"{recipe.name} has no images: score it with evaluate_text.")
    confusion, ranked = _confusion(trainer, len(tested.classes))
    return Evaluation(
        recipe,
        trainer.seed,
        trainer.epoch,
        tested.classes,
        confusion,
        tuple(notes),
        None if recipe.data.size is None else 100.0 * ranked / len(tested),
    )


def evaluate_text(path: Path, root: Path, device: torch.device) -> tuple[Trainer, dict[str, float]]:
    """Score the newest checkpoint of a run on sentences; return the trainer and all metrics."""
    trainer, _ = _at_newest(*RunFolder.open(path), root, device)
    value, _ = trainer.evaluate()
    return trainer, {trainer.recipe.metric: value, **trainer.scores}


def _at_newest(
    folder: RunFolder, recipe: Recipe, environment: dict[str, Any], root: Path, device: torch.device
) -> tuple[Trainer, list[str]]:
    """Return a trainer with the newest weights, and a sentence for each damaged checkpoint.

    It can test, not train: runs that this one learnt from or began with are not needed.
    """
    if not folder.begun:
        raise CheckpointMismatchError(
            f"{folder.path} holds no checkpoint yet. Train it with: surge train --resume "
            f"{folder.path}"
        )
    trainer = Trainer(
        alone(recipe),
        load_sets(recipe.data, root),
        seed=int(environment["seed"]),
        device=device,
        folder=folder,
        options=LoopOptions(compiled=False, captured=False),
    )
    state, notes = checkpoint.load_newest(folder.checkpoints, recipe.name, device)
    load_trained_(trainer.parts.model, state, recipe, folder.checkpoints)
    trainer.epoch = state["epoch"]
    return trainer, notes


def _confusion(trainer: Trainer, count: int) -> tuple[Tensor, int]:
    """Return counts of (true, predicted), and how many labels were among the five likeliest."""
    total, ranked = torch.zeros(count * count, dtype=torch.int64), 0
    trainer.parts.model.eval()
    loader = trainer.test_loader
    plan = loader.plan(0)
    for index in range(len(loader)):
        logits, labels = trainer.test_step.predict(loader.part(plan, index))
        pairs = labels * count + logits.argmax(dim=1)
        total += torch.bincount(pairs.cpu(), minlength=count * count)
        ranked += int(count_ranked(logits, labels))
    return total.view(count, count), ranked
