"""The loop that every recipe uses: epochs, tests, checkpoints, and a clean stop on a deadline."""

import math
import time
from collections.abc import Callable, Iterator
from itertools import islice
from typing import Any

import torch

from surge.data import EpochPlan
from surge.errors import ConfigError
from surge.layers.elastic import elastic_parts, initialize_
from surge.layers.hooks import on_epoch
from surge.recipes.recipe import Recipe
from surge.train import mid_epoch, trainer_state
from surge.train.build import (
    Parts,
    Sets,
    build_parts,
    for_own_checkpoint,
    make_loaders,
    set_learning_rate,
)
from surge.train.capture import Captured
from surge.train.distributed import World, wrapped
from surge.train.divergence import diverged_error
from surge.train.guide import make_guide
from surge.train.mode import choose_mode
from surge.train.norms import recalibrate_norms, wants_recalibration
from surge.train.options import LoopOptions, Outcome
from surge.train.parts import set_arithmetic
from surge.train.probe.dose import DoseMeter, mean_dose
from surge.train.probe.recorder import make_recorder
from surge.train.run import RunFolder
from surge.train.schedule import is_tested, is_tested_midway, learning_rate, rate_at, step_seed
from surge.train.step import Criterion, TrainStep
from surge.train.sync_norm import synchronize_norms_
from surge.train.task import task_of
from surge.train.watch import BitWatch

__all__ = ["LoopOptions", "Outcome", "Row", "Trainer"]

Row = dict[str, Any]


class Trainer:
    """One run of one recipe with one seed."""

    def __init__(
        self,
        recipe: Recipe,
        sets: Sets,
        *,
        seed: int,
        device: torch.device,
        folder: RunFolder,
        world: World | None = None,
        options: LoopOptions | None = None,
        criterion: Criterion | None = None,
    ) -> None:
        """Build everything; a checkpoint, if the folder has one, is loaded by :meth:`resume`."""
        self.recipe, self.seed, self.device, self.folder = recipe, seed, device, folder
        self.world, self.options = world or World(), options or LoopOptions()
        self.sets, self.criterion = sets, criterion
        set_arithmetic(device, recipe.train.precision)
        self.task = task = task_of(recipe.data)
        synced = recipe.train.sync_norm and self.world.size > 1
        compiled = False if synced else self.options.compiled
        self.mode = choose_mode(
            device,
            self.world,
            compiled,
            self.options.captured,
            fixed=task.fixed,
            lean=self.options.lean,
        )
        self.train_loader, self.test_loader = make_loaders(
            recipe, sets, seed, device, self.world, workers=self.options.workers
        )
        example = task.example(recipe, sets[0])
        built = for_own_checkpoint(recipe) if folder.begun else recipe
        self.parts: Parts = build_parts(built, seed, device, example)
        if self.world.size > 1 and self.parts.compensation and self.parts.compensation.every > 1:
            raise ConfigError(
                "Auxiliary weights that learn in some steps only (every= above 1) need one "
                "process: several exchange the gradients of all weights in every step."
            )
        if synced:
            synchronize_norms_(self.parts.model)
        self._set_levels()
        self.train_step = TrainStep(
            self.parts,
            wrapped(self.parts.model, self.world, device, compiled=self.mode.compiled),
            self.train_loader,
            recipe.train,
            criterion=criterion,
            objective=task.objective(recipe, self.parts.model, seed, device),
            compiled=self.mode.compiled and self.world.size == 1,
            lean=self.mode.lean,
        )
        self.test_step = task.test_step(recipe, self.parts.model, self.test_loader, sets[1])
        self.step: Callable[..., None] = self.train_step
        self.test: Callable[[EpochPlan], None] = self.test_step
        if self.mode.captured:
            self.step = Captured(self.train_step, self.train_step.state)
            self.test = Captured(self.test_step, lambda: [self.test_step.sums.values])
        # Synchronised norms would wait for the other ranks, which take no part in measuring.
        self.meter = None if synced else self._make_meter(example)
        self.recorder = make_recorder(self, synced=synced)
        self.guide = make_guide(self)
        self.epoch, self.seconds, self.rate = 0, 0.0, 0.0
        self.noted: dict[str, Any] | None = None
        self.begun, self.over_since = 0.0, math.inf
        self.on_step: Callable[[int, int], None] | None = None
        self.best, self.best_epoch, self.last = -math.inf, -1, math.nan
        self.scores: dict[str, float] = {}
        self.best_scores: dict[str, float] = {}

    def _set_levels(self) -> None:
        """Take the levels of elastic methods from the whole first batch, on all ranks."""
        model, loader = self.parts.model, self.train_loader
        if any(elastic_parts(model)):
            first = loader.plan(0).part(0, loader.batch_size)
            initialize_(model, loader.fetch(first)[0])

    def _make_meter(self, example: Any) -> DoseMeter | None:
        compensation = self.parts.compensation
        if compensation is None or not self.world.leads or not self.task.measurable:
            return None
        return DoseMeter(self.parts.model, compensation, example.to(self.device))

    def resume(self) -> list[str]:
        """Load the newest good checkpoint; return a sentence for each damaged one."""
        passed = self.load()
        if self.world.leads:
            self.folder.keep_metrics(self.epoch)
        return passed

    def load(self) -> list[str]:
        """Take the state of the newest good checkpoint, and touch no file."""
        return trainer_state.load(self)

    def save(self, noted: dict[str, Any] | None = None) -> None:
        """Write a checkpoint of the epochs done so far, and of the steps ``noted``."""
        if self.world.leads:
            trainer_state.save(self, noted)

    def run(
        self,
        on_row: Callable[[Row], None] | None = None,
        on_step: Callable[[int, int], None] | None = None,
    ) -> Outcome:
        """Train to the last epoch, or to the deadline.

        Every epoch is reported as a row, every step as its number in the epoch and their count.
        """
        self.on_step = on_step
        with torch.random.fork_rng(devices=[], enabled=not self.options.shared):
            self._run(on_row)
        return Outcome(
            self.epoch >= self.recipe.train.epochs,
            self.epoch,
            self.last,
            self.best,
            self.best_epoch,
            self.seconds,
            str(self.mode),
            {name: (v, self.best_scores.get(name, v)) for name, v in self.scores.items()},
        )

    def _run(self, on_row: Callable[[Row], None] | None) -> None:
        epochs = self.recipe.train.epochs
        watch = BitWatch(self.parts.model)
        saved = time.monotonic()
        late = False
        if self.epoch < epochs and self.world.leads:
            self.folder.forget_predictions()
        while self.epoch < epochs and not late:
            row = self._one_epoch(watch)
            if row is None:
                return
            if self.world.leads:
                self.folder.append_metrics(row)
                if self.epoch == epochs:  # before the checkpoint: a run that has that is finished
                    self.folder.write_predictions(self.test_step.predictions())
            if on_row is not None:
                on_row(row)
            now = time.monotonic()
            # One clock decides for all: the others would wait for a process that stopped alone.
            over = self.options.is_over(now)
            late = over is not None and self.world.any(over, self.device)
            if self.epoch == epochs or late or now - saved >= self.options.save_every:
                self.save()
                saved = now

    def _one_epoch(self, watch: BitWatch) -> Row | None:
        """Return what there is to say about an epoch, or None if the run stopped inside it."""
        if self.recorder is not None:
            self.recorder.begin_epoch()
        self.begun = time.monotonic()
        self.begin_epoch()
        done, self.noted = mid_epoch.take_up(self, watch, self.noted) if self.noted else 0, None
        first = self._steps_before()
        for number, part, numbers in self.steps(done):
            self.step(part, *numbers)
            if self.guide is not None:
                self.guide.after_step(number, part)
            if is_tested_midway(self.recipe.train, number + 1, len(self.train_loader)):
                self._judge()
                self.parts.model.train()
            done = number + 1 - first
            if self.on_step is not None:
                self.on_step(done, len(self.train_loader))
            mid_epoch.keep(self, watch, done)
            if mid_epoch.stops(self, watch, done):
                return None
        loss, hits, count, dose = self.train_step.sums.read()
        self.check_finite(loss)
        self.recalibrate()
        due = is_tested(self.recipe.train, self.epoch)
        test_loss = self._judge() if due else None
        tested = {self.recipe.metric: self.last, **self.scores} if due else {}
        seconds = time.monotonic() - self.begun
        self.seconds += seconds
        row: Row = {
            "epoch": self.epoch,
            "seconds": round(seconds, 4),
            "lr": self.rate,
            "train_loss": loss / count,
            **({f"train_{self.task.hits}": 100 * hits / count} if self.task.hits else {}),
            **({} if test_loss is None else {"test_loss": test_loss}),
            **{f"test_{name}": value for name, value in tested.items()},
            "flips": watch.flipped(),
        }
        if self.parts.compensation is not None:
            scales = list(self.parts.compensation.scales().values())
            row["scale"] = sum(scales) / len(scales)
            if self.parts.compensation.injects:
                row["injected"] = dose / count
            row |= mean_dose(self)
        if self.recorder is not None:
            self.recorder.end_epoch()
        self.epoch += 1
        return row

    def _judge(self) -> float | None:
        """Test, note what is best so far, and return the loss, if a test has one."""
        self.last, loss = self.evaluate()
        if loss is not None:
            self.check_finite(loss)
        if self.last > self.best:
            self.best, self.best_epoch, self.best_scores = self.last, self.epoch, self.scores
        return loss

    def check_finite(self, loss: float) -> None:
        """End a run that diverged."""
        if not math.isfinite(loss):
            raise diverged_error(self)

    def _steps_before(self) -> int:
        return self.epoch * len(self.train_loader)

    def _set_rate(self, number: int, base: float) -> None:
        """Set the learning rate of a step, where it is not just that of its epoch."""
        own = rate_at(self.recipe.train, number, base, len(self.train_loader))
        if own is not None:
            set_learning_rate(self.parts.optimizer, own)
        self.rate = base if own is None else own

    def _turn(self, number: int) -> tuple[float, ...]:
        """Say whose turn a step is, where steps differ: each kind gets a graph of its own."""
        compensation = self.parts.compensation
        if compensation is None or compensation.every == 1:
            return ()
        return (float(number % compensation.every > 0),)

    def begin_epoch(self) -> float:
        """Set all schedules of this epoch and return its learning rate.

        Random numbers that a step draws depend on seed, epoch and rank alone.
        """
        spec = self.recipe.train
        self.rate = learning_rate(spec, self.epoch)
        set_learning_rate(self.parts.optimizer, self.rate)
        on_epoch(self.parts.model, self.epoch, spec.epochs)
        if not self.options.shared:
            torch.manual_seed(step_seed(self.seed, self.epoch, self.world.rank))
        self.parts.model.train()
        return self.rate

    def batches(self, start: int = 0) -> Iterator[tuple[EpochPlan, float]]:
        """Yield this rank's part of every batch of the epoch, and the weight of its loss."""
        loader = self.train_loader
        plan = loader.plan(self.epoch)
        steps = self.recipe.train.steps
        left = len(loader) if steps is None else min(len(loader), steps - self._steps_before())
        for index in range(start, left):
            part = loader.part(plan, index)
            whole = min(loader.batch_size, len(plan) - index * loader.batch_size)
            yield part, len(part) * self.world.size / whole

    def steps(self, start: int = 0) -> Iterator[tuple[int, EpochPlan, tuple[float, ...]]]:
        """Set the learning rate of every step of the epoch, and yield what the step gets.

        The first item is its number, counted from the first step of the run.
        """
        base, before = self.rate, self._steps_before() + start
        for number, (part, weight) in enumerate(self.batches(start), start=before):
            self._set_rate(number, base)
            yield number, part, (weight, *self._turn(number))

    def recalibrate(self) -> None:
        """Let norms see the weights of inference, where those are others than in training.

        They look at full training batches of this epoch.
        """
        if not wants_recalibration(self.parts.model):
            return
        loader = self.train_loader
        full = max(1, len(self.sets[0]) // loader.batch_size)
        with self.train_step.autocast():
            images = (images for images, _ in loader.batches(self.epoch))
            recalibrate_norms(self.parts.model, islice(images, full))

    def evaluate(self) -> tuple[float, float | None]:
        """Return (the recipe's metric in percent, loss) on what is tested on."""
        self.parts.model.eval()
        self.world.share_norms(self.parts.model)
        plan = self.test_loader.plan(0)
        for index in range(len(self.test_loader)):
            part = self.test_loader.part(plan, index)
            if len(part):  # a small last batch may leave nothing for some rank
                self.test(part)
        verdict = self.test_step.verdict(self.recipe.metric)
        self.scores = verdict.others
        return verdict.value, verdict.loss
