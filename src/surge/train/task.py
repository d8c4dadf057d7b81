"""What differs from one kind of data to another; the training loop itself knows none of it.

A task loads its sets, makes loaders, builds the network, and says what is minimised and how a test
is judged. :class:`Task` is that of small images, which live on the device as they are.
"""

from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from surge.compensation import Compensation, compensate_
from surge.convert import binarize_
from surge.data import Augmentation, ImageSet, ResidentLoader, hold_out, load_cifar10, load_digits
from surge.data.glue import get_task
from surge.errors import ConfigError
from surge.models import build_model
from surge.ranks import share_of
from surge.recipes.recipe import DataSpec, Recipe
from surge.train import stages
from surge.train.parts import Place
from surge.train.photos import loading
from surge.train.photos.features import feature_objective
from surge.train.photos.teacher import checked_teacher, teacher_objective
from surge.train.scoring import RankedTest, TextTest
from surge.train.step import Objective, TestStep, parts_of
from surge.train.text import build as text

MEASURED = 128
"""Images by which layers are chosen."""


def check_batches(recipe: Recipe, count: int, ranks: int = 1) -> None:
    """Refuse an epoch in which a process sees one image alone: a BatchNorm has no statistics.

    Synchronised norms see the images of all processes, which then must cut their shares alike.
    """
    train = recipe.train
    batch = min(train.batch, count)
    synced = train.sync_norm and ranks > 1
    for size in {batch, 0 if train.drop_last else count % batch} - {0}:
        shares = [share_of(size, rank, ranks) for rank in range(ranks)]
        cut = [parts_of(b - a, train.accumulate) for a, b in shares if b > a]
        if synced and len({len(parts) for parts in cut}) > 1:
            raise ConfigError(
                f"{recipe.name}: the {size} images of a batch make unequal numbers of parts in "
                f"{ranks} processes (--accumulate {train.accumulate}), which --sync-norm cannot "
                "join; choose another --limit, --batch or --accumulate."
            )
        if size == 1 or (not synced and min(map(min, cut)) == 1):
            raise ConfigError(
                f"{recipe.name}: {count} images in batches of {train.batch} leave a batch with one "
                "image, of which a BatchNorm has no statistics; choose another --limit or --batch."
            )


class Task:
    """Small images with one label each."""

    hits: ClassVar[str | None] = "top1"
    """What the share of right answers in training is called, if it is counted."""
    fixed: ClassVar[bool] = True
    """Whether all steps do the same work, so that they can be compiled and captured."""
    measurable: ClassVar[bool] = True
    """Whether the delivered dose means something here."""
    normed: ClassVar[bool] = True
    """Whether networks have norms over the batch that learn, so that one input is no batch."""

    def load_sets(self, spec: DataSpec, root: Path, workers: int | None = None) -> Any:
        """Return what is trained on and what is tested on."""
        if spec.name == "digits":
            train, test = load_digits("train"), load_digits("test")
        else:
            train = load_cifar10(root, "train")
            test = train if spec.held_out else load_cifar10(root, "test")
        if spec.held_out:
            train, test = hold_out(train)
        if spec.limit is not None:
            train, test = (s.subset(torch.arange(min(spec.limit, len(s)))) for s in (train, test))
        return train, test

    def check(self, recipe: Recipe, sets: Any, ranks: int = 1) -> None:
        """Refuse a recipe that does not fit its sets, before a folder is made for its run."""
        if self.normed:
            check_batches(recipe, len(sets[0]), ranks)

    def remarks(self, sets: Any) -> list[str]:
        """Return what is to be said about the sets before a run begins."""
        return []

    def make_loaders(
        self, recipe: Recipe, sets: Any, seed: int, place: Place
    ) -> tuple[ResidentLoader, ResidentLoader]:
        """Put both sets on the device; all arms of one seed see the same order and crops."""
        assert isinstance(sets[0], ImageSet) and isinstance(sets[1], ImageSet)
        train = ResidentLoader(
            sets[0],
            batch_size=min(recipe.train.batch, len(sets[0])),
            seed=seed,
            shuffle=True,
            augmentation=Augmentation() if recipe.data.augment else None,
            drop_last=recipe.train.drop_last,
            **place.options(),
        )
        batch = 2500 if place.device.type == "cuda" else 500
        return train, ResidentLoader(sets[1], batch_size=batch, **place.options())

    def example(self, recipe: Recipe, first: Any) -> Any:
        """Return a small batch for a dry run; where it is measured, real images."""
        if recipe.surge is None or recipe.surge.chosen != "saliency":
            return torch.zeros(2, *first.images.shape[1:])
        scale, shift = first.normalization.constants()
        return (first.images[:MEASURED].cpu() * scale + shift).to(torch.get_default_dtype())

    def build_network(
        self, recipe: Recipe, seed: int, example: Any
    ) -> tuple[nn.Module, Compensation | None]:
        """Build the model on the CPU; its own weights depend on the seed alone, not on SURGE."""
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            options = {k: v for k, v in recipe.model.options.items() if k != "start"}
            model = build_model(recipe.model.name, **options)
            if recipe.method is not None:
                method = recipe.method
                binarize_(model, method.name, skip=method.skip, **method.options)
        if "start" in recipe.model.options:
            stages.start_from_(model, recipe)
        return model, compensated(model, recipe, seed, example)

    def objective(
        self, recipe: Recipe, model: nn.Module, seed: int, device: torch.device
    ) -> Objective | None:
        """Return what is minimised; None stands for the cross-entropy of labels alone."""
        if recipe.distill is not None:
            return teacher_objective(recipe, device)
        return feature_objective(model, recipe.train.label_smoothing, device)

    def test_step(
        self, recipe: Recipe, model: nn.Module, loader: ResidentLoader, tested: Any
    ) -> TestStep:
        """Return the step that tests one batch."""
        return TestStep(model, loader, recipe.train)


class PhotoTask(Task):
    """Photographs, of which crops are seen."""

    def load_sets(self, spec: DataSpec, root: Path, workers: int | None = None) -> Any:
        """Return photographs, decoded if the recipe keeps them."""
        return loading.load_photo_sets(spec, root, workers)

    def check(self, recipe: Recipe, sets: Any, ranks: int = 1) -> None:
        """Refuse an impossible crop, other classes, and a foreign teacher or first stage."""
        super().check(recipe, sets, ranks)
        loading.check_photos(recipe, sets)
        if recipe.distill is not None:
            checked_teacher(recipe)
        if "start" in recipe.model.options:
            stages.first_stage(recipe)

    def make_loaders(
        self, recipe: Recipe, sets: Any, seed: int, place: Place
    ) -> tuple[ResidentLoader, ResidentLoader]:
        """Return loaders of crops."""
        return loading.make_photo_loaders(recipe, sets, seed, place)

    def example(self, recipe: Recipe, first: Any) -> Tensor:
        """Return noise, as two crops of a size that costs little."""
        return torch.randn(2, 3, 64, 64, generator=torch.Generator().manual_seed(0))

    def test_step(
        self, recipe: Recipe, model: nn.Module, loader: ResidentLoader, tested: Any
    ) -> TestStep:
        """Count the five likeliest classes too."""
        return RankedTest(model, loader, recipe.train)


class TextTask(Task):
    """Sentences of one length for a BERT, which has no clamps that could hold a dose back."""

    hits: ClassVar[str | None] = "accuracy"
    measurable = False
    normed = False

    def load_sets(self, spec: DataSpec, root: Path, workers: int | None = None) -> Any:
        """Return tokenised sentences."""
        return text.load_text_sets(spec, root)

    def remarks(self, sets: Any) -> list[str]:
        """Say how many sentences lost their end."""
        return [
            f"{part.truncated} of {len(part)} texts were cut to {part.length} tokens"
            for part in sets
            if part.truncated
        ]

    def make_loaders(
        self, recipe: Recipe, sets: Any, seed: int, place: Place
    ) -> tuple[ResidentLoader, ResidentLoader]:
        """Return loaders of tokens."""
        return text.make_text_loaders(recipe, sets, seed, place)

    def example(self, recipe: Recipe, first: Any) -> Tensor:
        """Return two sentences."""
        tokens: Tensor = first.tokens[:2].long()
        return tokens

    def build_network(
        self, recipe: Recipe, seed: int, example: Any
    ) -> tuple[nn.Module, Compensation | None]:
        """Build a BERT, pretrained or with the weights of its teacher."""
        return text.build_bert(recipe, seed, example)

    def objective(
        self, recipe: Recipe, model: nn.Module, seed: int, device: torch.device
    ) -> Objective | None:
        """Learn from labels or a teacher."""
        return text.objective_of(recipe, seed, device)

    def test_step(
        self, recipe: Recipe, model: nn.Module, loader: ResidentLoader, tested: Any
    ) -> TestStep:
        """Keep all logits: metrics are of a whole set."""
        return TextTest(model, loader, recipe.train, get_task(recipe.data.name), tested)


class ScoreTask(TextTask):
    """Sentences with scores, of which none is right or wrong."""

    hits = None


def compensated(model: nn.Module, recipe: Recipe, seed: int, example: Any) -> Compensation | None:
    """Give a model the auxiliary paths of its recipe, in place."""
    if recipe.surge is None:
        return None
    fields = {**vars(recipe.surge), "seed": seed}
    return compensate_(model, **fields, example_input=example)


def task_of(spec: DataSpec) -> Task:
    """Return the task of a recipe's data."""
    if spec.name == "voc":
        from surge.train.detection.task import DetectionTask

        return DetectionTask()
    if spec.length is not None:
        return TextTask() if get_task(spec.name).labels else ScoreTask()
    return Task() if spec.size is None else PhotoTask()
