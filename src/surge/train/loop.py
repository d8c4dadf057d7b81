"""The loop that every recipe uses: epochs, tests, checkpoints, and a clean stop on a deadline."""

import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from surge.data import EpochPlan, ImageSet
from surge.layers.hooks import on_epoch
from surge.recipes.recipe import Recipe
from surge.train import checkpoint
from surge.train.build import Parts, build_parts, make_loaders, set_learning_rate
from surge.train.capture import Captured
from surge.train.distributed import World, wrapped
from surge.train.run import RunFolder
from surge.train.schedule import learning_rate
from surge.train.step import Criterion, TestStep, TrainStep
from surge.train.watch import BitWatch, DivergedError, first_not_finite

Row = dict[str, Any]


@dataclass(frozen=True)
class LoopOptions:
    """How a run is executed; nothing here changes what it computes beyond rounding."""

    compiled: bool | None = None
    """Compile the forward and backward; by default on a GPU."""
    captured: bool | None = None
    """Capture the step in a CUDA graph; by default on one GPU."""
    save_every: float = 30.0
    """Seconds between checkpoints; 0 writes one after every epoch."""
    deadline: float | None = None
    """Stop after the epoch that passes this time (of ``time.monotonic``)."""


@dataclass(frozen=True)
class Outcome:
    """How a run stands after the loop returned."""

    finished: bool
    epochs: int
    last: float
    best: float
    best_epoch: int
    seconds: float
    mode: str
    """Which path the steps took: eager, compiled, captured."""


class Trainer:
    """One run of one recipe with one seed."""

    def __init__(
        self,
        recipe: Recipe,
        sets: tuple[ImageSet, ImageSet],
        *,
        seed: int,
        device: torch.device,
        folder: RunFolder,
        world: World | None = None,
        options: LoopOptions | None = None,
        criterion: Criterion | None = None,
    ) -> None:
        """Build everything; a checkpoint, if the folder has one, is loaded by :meth:`run`."""
        self.recipe, self.seed, self.device, self.folder = recipe, seed, device, folder
        self.world, self.options = world or World(), options or LoopOptions()
        on_gpu = device.type == "cuda"
        self.compiled = on_gpu if self.options.compiled is None else self.options.compiled
        alone = on_gpu and self.world.size == 1
        self.captured = alone if self.options.captured is None else self.options.captured
        self.train_loader, self.test_loader = make_loaders(recipe, sets, seed, device, self.world)
        example = torch.zeros(2, *sets[0].images.shape[1:])
        self.parts: Parts = build_parts(recipe, seed, device, example)
        network = wrapped(self.parts.model, self.world, device)
        self.train_step = TrainStep(
            self.parts,
            network,
            self.train_loader,
            recipe.train,
            criterion=criterion,
            compiled=self.compiled,
        )
        self.test_step = TestStep(self.parts.model, self.test_loader, recipe.train)
        self.step: Callable[[EpochPlan], None] = self.train_step
        self.test: Callable[[EpochPlan], None] = self.test_step
        if self.captured:
            self.step = Captured(self.train_step, self._state)
            self.test = Captured(self.test_step, lambda: [self.test_step.sums.values])
        self.epoch, self.seconds = 0, 0.0
        self.best, self.best_epoch, self.last = -math.inf, -1, math.nan

    @property
    def mode(self) -> str:
        """Say which path the steps take."""
        chosen = [n for n, on in (("compiled", self.compiled), ("captured", self.captured)) if on]
        return " and ".join(chosen) or "eager"

    def _state(self) -> list[Tensor]:
        model = self.parts.model
        inner = [
            value
            for state in self.parts.optimizer.state.values()
            for value in state.values()
            if isinstance(value, Tensor)
        ]
        return [*model.parameters(), *model.buffers(), *inner, self.train_step.sums.values]

    def resume(self) -> list[str]:
        """Load the newest good checkpoint; return a sentence for each damaged one."""
        state, passed = checkpoint.load_newest(
            self.folder.checkpoints, self.recipe.name, self.device
        )
        self.parts.model.load_state_dict(state["model"])
        self._load_optimizer(state["optimizer"])
        self.epoch, self.seconds = state["epoch"], state["seconds"]
        self.best, self.best_epoch, self.last = (
            state["best"],
            state["best_epoch"],
            state["last"],
        )
        if self.world.leads:
            self.folder.keep_metrics(self.epoch)
        return passed

    def _load_optimizer(self, state: dict[str, Any]) -> None:
        # The learning rate stays the tensor that a captured step reads.
        rates = [group["lr"] for group in self.parts.optimizer.param_groups]
        self.parts.optimizer.load_state_dict(state)
        for group, rate in zip(self.parts.optimizer.param_groups, rates, strict=True):
            group["lr"] = rate

    def save(self) -> None:
        """Write a checkpoint of the epochs done so far."""
        if not self.world.leads:
            return
        state = {
            "recipe": self.recipe.name,
            "model": self.parts.model.state_dict(),
            "optimizer": self.parts.optimizer.state_dict(),
            "seconds": self.seconds,
            "best": self.best,
            "best_epoch": self.best_epoch,
            "last": self.last,
        }
        checkpoint.save(self.folder.checkpoints, state, self.epoch)

    def run(self, on_row: Callable[[Row], None] | None = None) -> Outcome:
        """Train to the last epoch, or to the deadline; every epoch is reported as a row."""
        epochs = self.recipe.train.epochs
        watch = BitWatch(self.parts.model)
        saved = time.monotonic()
        while self.epoch < epochs:
            row = self._one_epoch(watch)
            if self.world.leads:
                self.folder.append_metrics(row)
            if on_row is not None:
                on_row(row)
            now = time.monotonic()
            late = self.options.deadline is not None and now >= self.options.deadline
            if self.epoch == epochs or late or now - saved >= self.options.save_every:
                self.save()
                saved = now
            if late:
                break
        return Outcome(
            self.epoch >= epochs,
            self.epoch,
            self.last,
            self.best,
            self.best_epoch,
            self.seconds,
            self.mode,
        )

    def _one_epoch(self, watch: BitWatch) -> Row:
        start = time.monotonic()
        spec = self.recipe.train
        rate = learning_rate(spec, self.epoch)
        set_learning_rate(self.parts.optimizer, rate)
        on_epoch(self.parts.model, self.epoch, spec.epochs)
        self._train_epoch()
        loss, hits, count, dose = self.train_step.sums.read()
        if not math.isfinite(loss):
            raise DivergedError(
                f"Training diverged in epoch {self.epoch} of {self.recipe.name}: "
                f"{first_not_finite(self.parts.model)} is not finite. The last good checkpoint "
                f"is kept in {self.folder.checkpoints}."
            )
        self.last, test_loss = self.evaluate()
        if self.last > self.best:
            self.best, self.best_epoch = self.last, self.epoch
        seconds = time.monotonic() - start
        self.seconds += seconds
        row: Row = {
            "epoch": self.epoch,
            "seconds": round(seconds, 4),
            "lr": rate,
            "train_loss": loss / count,
            "train_top1": 100 * hits / count,
            "test_loss": test_loss,
            "test_top1": self.last,
            "flips": watch.flipped(),
        }
        if self.parts.compensation is not None:
            scales = list(self.parts.compensation.scales().values())
            row |= {"scale": sum(scales) / len(scales), "injected": dose / count}
        self.epoch += 1
        return row

    def _train_epoch(self) -> None:
        self.parts.model.train()
        plan = self.train_loader.plan(self.epoch)
        for index in range(len(self.train_loader)):
            part = plan.part(*self.train_loader.bounds(index))
            self.step(part)

    def evaluate(self) -> tuple[float, float]:
        """Return (accuracy in percent, loss) on the test images."""
        self.parts.model.eval()
        plan = self.test_loader.plan(0)
        for index in range(len(self.test_loader)):
            self.test(plan.part(*self.test_loader.bounds(index)))
        loss, hits, count, _ = self.test_step.sums.read()
        return 100 * hits / count, loss / count


def run_folder_name(recipe: Recipe, seed: int, root: Path) -> Path:
    """Return the default folder of a run."""
    return root / f"{recipe.name}-seed{seed}"
