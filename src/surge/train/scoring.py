"""Tests on sentences: all logits stay on the device until the last batch, then they are judged."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from surge.data import EpochPlan, ImageSet, ResidentLoader
from surge.data.folders import FileSet
from surge.data.glue import Task, get_task
from surge.data.glue_metrics import score
from surge.data.textset import TextSet
from surge.recipes.recipe import Recipe, TrainSpec
from surge.train import text
from surge.train.distill import label_loss
from surge.train.photos import count_ranked
from surge.train.step import Objective, TestStep
from surge.train.teacher import teacher_objective

SHORT = {"dev_mismatched": "-mm"}
"""What is added to the metrics of a part that does not decide."""


class TextTest(TestStep):
    """Collects the logits of a test set, and its loss."""

    def __init__(
        self, model: nn.Module, loader: ResidentLoader, spec: TrainSpec, task: Task, tested: TextSet
    ) -> None:
        """Make room for all logits."""
        super().__init__(model, loader, spec)
        self.task, self.sections = task, tested.sections or (("", len(tested)),)
        self.labels = tested.labels.double().numpy()
        self.logits = torch.zeros(len(tested), task.outputs, device=loader.device)

    def __call__(self, part: EpochPlan) -> None:
        """Keep the logits of one batch; the model must be in eval mode."""
        logits, labels = self.predict(part)
        self.logits.index_copy_(0, part.permutation, logits.to(self.logits.dtype))
        self.sums.add(label_loss(logits, labels), torch.zeros_like(labels[0]), len(part))

    def scores(self) -> dict[str, float]:
        """Return every metric of every part, in percent; the first one decides."""
        logits = self._gathered().double().cpu().numpy()
        found, start = {}, 0
        for name, count in self.sections:
            window = slice(start, start + count)
            for metric in self.task.metrics:
                value = score(metric, logits[window], self.labels[window])
                found[metric + SHORT.get(name, "")] = value
            start += count
        return found

    def _gathered(self) -> Tensor:
        """Return the logits of all ranks; a rank's own are all it has ever written."""
        if not (torch.distributed.is_available() and torch.distributed.is_initialized()):
            return self.logits
        total = self.logits.clone()
        torch.distributed.all_reduce(total)
        return total


class RankedTest(TestStep):
    """Also counts images whose class is among the five likeliest."""

    def __call__(self, part: EpochPlan) -> None:
        """Add one batch to the sums; the place of the dose, which a test has none of, is used."""
        logits, labels = self.predict(part)
        hits = (logits.argmax(dim=1) == labels).sum()
        self.sums.add(F.cross_entropy(logits, labels), hits, len(part))
        self.sums.add_dose(count_ranked(logits, labels), 1)


def example_of(first: ImageSet | FileSet | TextSet, size: int | None = None) -> Tensor:
    """Return a small batch for a dry run; ``size`` is that of crops, where there are any."""
    if isinstance(first, TextSet):
        return first.tokens[:2].long()
    if size is not None or isinstance(first, FileSet):
        return torch.zeros(2, 3, 64, 64)
    return torch.zeros(2, *first.images.shape[1:])


def objective_for(recipe: Recipe, seed: int, device: torch.device) -> Objective | None:
    """Return what a recipe with a teacher, or on sentences, is trained for; else None."""
    if recipe.data.length is not None:
        return text.objective_of(recipe, seed, device)
    return None if recipe.distill is None else teacher_objective(recipe, device)


def make_test_step(
    recipe: Recipe, model: nn.Module, loader: ResidentLoader, tested: ImageSet | FileSet | TextSet
) -> TestStep:
    """Return the step that tests one batch."""
    if isinstance(tested, TextSet):
        return TextTest(model, loader, recipe.train, get_task(recipe.data.name), tested)
    kind = TestStep if recipe.data.size is None else RankedTest
    return kind(model, loader, recipe.train)


def hit_name(recipe: Recipe) -> str:
    """Return what the share of right answers in training is called."""
    return "top1" if recipe.data.length is None else "accuracy"
