"""Tests that count more than hits: metrics of sentences, the five likeliest classes."""

from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor, nn

from surge.data import EpochPlan, ResidentLoader
from surge.data.glue import Task
from surge.data.glue_metrics import score
from surge.data.textset import TextSet
from surge.ranks import joined
from surge.recipes.recipe import TrainSpec
from surge.train.photos.loading import count_ranked
from surge.train.step import TestStep, Verdict
from surge.train.text.distill import label_loss

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
        self.given = tested.labels.cpu().numpy()
        self.labels = self.given.astype(np.float64)
        self.logits = torch.zeros(len(tested), task.outputs, device=loader.device)
        self.judged: NDArray[Any] | None = None

    def __call__(self, part: EpochPlan) -> None:
        """Keep the logits of one batch; the model must be in eval mode."""
        logits, labels = self.predict(part)
        self.logits.index_copy_(0, part.permutation, logits.to(self.logits.dtype))
        self.sums.add(label_loss(logits, labels), torch.zeros_like(labels[0]), len(part))

    def scores(self) -> dict[str, float]:
        """Return every metric of every part, in percent; the first one decides."""
        self.judged = self._gathered().cpu().numpy().copy()
        logits = self.judged.astype(np.float64)
        found, start = {}, 0
        for name, count in self.sections:
            window = slice(start, start + count)
            for metric in self.task.metrics:
                value = score(metric, logits[window], self.labels[window])
                found[metric + SHORT.get(name, "")] = value
            start += count
        return found

    def verdict(self, metric: str) -> Verdict:
        """Return the metric that decides under its own name, apart from the others."""
        loss, _, count, _ = self.sums.read()
        found = self.scores()
        return Verdict(found.pop(metric), loss / count, found)

    def predictions(self) -> dict[str, NDArray[Any]]:
        """Return the logits behind the last verdict, the labels, and the part each belongs to."""
        if self.judged is None:
            return {}
        counts = [count for _, count in self.sections]
        return {
            "logits": self.judged.astype(np.float32),
            "labels": self.given,
            "section": np.repeat(np.arange(len(counts), dtype=np.uint8), counts),
        }

    def _gathered(self) -> Tensor:
        """Return the logits of all ranks; a rank's own are all it has ever written."""
        if not joined():
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

    def verdict(self, metric: str) -> Verdict:
        """Return both shares."""
        loss, hits, count, ranked = self.sums.read()
        return Verdict(100 * hits / count, loss / count, {"top5": 100 * ranked / count})
