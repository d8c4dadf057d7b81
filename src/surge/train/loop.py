"""The loop that every recipe uses: epochs, tests, checkpoints, and a clean stop on a deadline."""

import math
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

import torch
from torch import Tensor

from surge.data import EpochPlan
from surge.errors import CheckpointMismatchError
from surge.layers.elastic import elastic_parts, initialize_
from surge.layers.hooks import on_epoch
from surge.recipes.recipe import Recipe
from surge.train import checkpoint, midway
from surge.train.build import Parts, Sets, build_parts, make_loaders, set_learning_rate
from surge.train.capture import Captured
from surge.train.distributed import World, wrapped
from surge.train.dose import DoseMeter
from surge.train.mode import choose_mode
from surge.train.norms import recalibrate_norms, wants_recalibration
from surge.train.recorder import make_recorder
from surge.train.run import RunFolder
from surge.train.schedule import learning_rate, step_rate, step_seed
from surge.train.scoring import (
    RankedTest,
    TextTest,
    example_of,
    hit_name,
    make_test_step,
    objective_for,
)
from surge.train.search import first_bad_layer
from surge.train.step import Criterion, TrainStep
from surge.train.sync_norm import synchronize_norms_
from surge.train.watch import BitWatch, DivergedError, first_bad_state

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
    save_steps: int | None = None
    """Also write a checkpoint after every so many steps of an epoch."""
    deadline: float | None = None
    """Stop after the epoch that passes this time (of ``time.monotonic``)."""
    dose_every: int = 10
    """Measure the delivered dose every so many epochs, and after the last."""
    shared: bool = False
    """Other runs are trained in this process: torch's own generator is left alone."""
    record_every: int | None = None
    """Let the probe look at every so many epochs, and at the last; by default it does not."""
    record_theorem: bool = False
    """Also measure the theorem's premises then, against a smooth network."""


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
    others: dict[str, tuple[float, float]] = field(default_factory=dict)
    """Further metrics: at the end, and when the metric of the recipe was at its best."""


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
        if device.type == "cuda":
            short = recipe.train.precision == "tf32"
            torch.set_float32_matmul_precision("high" if short else "highest")
        synced = recipe.train.sync_norm and self.world.size > 1
        compiled = False if synced else self.options.compiled
        self.mode = choose_mode(device, self.world, compiled, self.options.captured)
        self.train_loader, self.test_loader = make_loaders(recipe, sets, seed, device, self.world)
        example = example_of(sets[0], recipe.data.size)
        self.parts: Parts = build_parts(recipe, seed, device, example)
        if synced:
            synchronize_norms_(self.parts.model)
        # All ranks take the levels of elastic methods from the whole first batch.
        if any(elastic_parts(self.parts.model)):
            first = self.train_loader.plan(0).part(0, self.train_loader.batch_size)
            initialize_(self.parts.model, self.train_loader.fetch(first)[0])
        self.train_step = TrainStep(
            self.parts,
            wrapped(self.parts.model, self.world, device, compiled=self.mode.compiled),
            self.train_loader,
            recipe.train,
            criterion=criterion,
            objective=objective_for(recipe, seed, device),
            compiled=self.mode.compiled and self.world.size == 1,
        )
        self.test_step = make_test_step(recipe, self.parts.model, self.test_loader, sets[1])
        self.step: Callable[[EpochPlan, float], None] = self.train_step
        self.test: Callable[[EpochPlan], None] = self.test_step
        if self.mode.captured:
            self.step = Captured(self.train_step, self._state)
            self.test = Captured(self.test_step, lambda: [self.test_step.sums.values])
        self.meter: DoseMeter | None = None
        # A BERT has no clamps that could hold a dose back; synchronised norms would wait for the
        # other ranks, which take no part in measuring.
        measurable = recipe.data.length is None and not synced
        if self.parts.compensation is not None and self.world.leads and measurable:
            self.meter = DoseMeter(self.parts.model, self.parts.compensation, example.to(device))
        self.recorder = make_recorder(self, synced=synced)
        self.epoch, self.seconds = 0, 0.0
        self.noted: dict[str, Any] | None = None
        self.best, self.best_epoch, self.last = -math.inf, -1, math.nan
        self.scores: dict[str, float] = {}
        self.best_scores: dict[str, float] = {}

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
        passed = self.load()
        if self.world.leads:
            self.folder.keep_metrics(self.epoch)
        return passed

    def load(self) -> list[str]:
        """Take the state of the newest good checkpoint, and touch no file."""
        state, passed = checkpoint.load_newest(
            self.folder.checkpoints, self.recipe.name, self.device
        )
        try:
            self.parts.model.load_state_dict(state["model"])
            self._load_optimizer(state["optimizer"])
        except (RuntimeError, ValueError, KeyError) as error:
            raise CheckpointMismatchError(
                f"The checkpoint in {self.folder.checkpoints} does not fit the model of "
                f"{self.recipe.name}: {error}"
            ) from error
        self.epoch, self.seconds = state["epoch"], state["seconds"]
        self.best, self.best_epoch = state["best"], state["best_epoch"]
        self.last = state["last"]
        self.scores, self.best_scores = state.get("scores", ({}, {}))
        if state.get("midway"):
            self.noted = {**state["midway"], "model": state["model"]}
        return passed

    def _load_optimizer(self, state: dict[str, Any]) -> None:
        # The learning rate stays the tensor that a captured step reads.
        rates = [group["lr"] for group in self.parts.optimizer.param_groups]
        self.parts.optimizer.load_state_dict(state)
        for group, rate in zip(self.parts.optimizer.param_groups, rates, strict=True):
            group["lr"] = rate

    def save(self, noted: dict[str, Any] | None = None) -> None:
        """Write a checkpoint of the epochs done so far, and of the steps ``noted``."""
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
            "scores": (self.scores, self.best_scores),
            "midway": noted,
        }
        checkpoint.save(self.folder.checkpoints, state, self.epoch)

    def run(self, on_row: Callable[[Row], None] | None = None) -> Outcome:
        """Train to the last epoch, or to the deadline; every epoch is reported as a row."""
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
        epochs, deadline = self.recipe.train.epochs, self.options.deadline
        watch = BitWatch(self.parts.model)
        saved = time.monotonic()
        late = False
        while self.epoch < epochs and not late:
            row = self._one_epoch(watch)
            if self.world.leads:
                self.folder.append_metrics(row)
            if on_row is not None:
                on_row(row)
            now = time.monotonic()
            # One clock decides for all: the others would wait for a process that stopped alone.
            late = deadline is not None and self.world.any(now >= deadline, self.device)
            if self.epoch == epochs or late or now - saved >= self.options.save_every:
                self.save()
                saved = now

    def _one_epoch(self, watch: BitWatch) -> Row:
        if self.recorder is not None:
            self.recorder.begin_epoch()
        start = time.monotonic()
        rate = self.begin_epoch()
        done, self.noted = midway.take_up(self, watch, self.noted) if self.noted else 0, None
        first = self._steps_before()
        for number, (part, weight) in enumerate(self.batches(done), start=first + done):
            rate = self._rate_at(number, rate)
            self.step(part, weight)
            if self._test_is_due(number + 1):
                self._judge()
                self.parts.model.train()
            done = number + 1 - first
            every = self.options.save_steps
            if every and done % every == 0 and done < len(self.train_loader):
                noted = midway.note(self, watch, done)
                if math.isfinite(noted["sums"][0]):  # else the last good one is kept
                    self.save(noted)
        loss, hits, count, dose = self.train_step.sums.read()
        if not math.isfinite(loss):
            raise self._diverged()
        if wants_recalibration(self.parts.model):
            self._recalibrate()
        test_loss = self._judge()
        seconds = time.monotonic() - start
        self.seconds += seconds
        row: Row = {
            "epoch": self.epoch,
            "seconds": round(seconds, 4),
            "lr": rate,
            "train_loss": loss / count,
            f"train_{hit_name(self.recipe)}": 100 * hits / count,
            "test_loss": test_loss,
            f"test_{self.recipe.metric}": self.last,
            **{f"test_{name}": value for name, value in self.scores.items()},
            "flips": watch.flipped(),
        }
        if self.parts.compensation is not None:
            scales = list(self.parts.compensation.scales().values())
            row |= {"scale": sum(scales) / len(scales), "injected": dose / count}
            row |= self._delivered()
        if self.recorder is not None:
            self.recorder.end_epoch()
        self.epoch += 1
        return row

    def _judge(self) -> float:
        """Test, note what is best so far, and return the loss."""
        self.last, loss = self.evaluate()
        if not math.isfinite(loss):
            raise self._diverged()
        if self.last > self.best:
            self.best, self.best_epoch, self.best_scores = self.last, self.epoch, self.scores
        return loss

    def _steps_before(self) -> int:
        return self.epoch * len(self.train_loader)

    def _rate_at(self, number: int, rate: float) -> float:
        """Set and return the learning rate of a step, where every step has its own."""
        spec = self.recipe.train
        if spec.schedule != "steps":
            return rate
        steps = spec.steps or spec.epochs * len(self.train_loader)
        rate = step_rate(spec, number, steps)
        set_learning_rate(self.parts.optimizer, rate)
        return rate

    def _test_is_due(self, done: int) -> bool:
        every, epoch = self.recipe.train.test_every, len(self.train_loader)
        last = done % epoch == 0 or done == self.recipe.train.steps
        return every is not None and done % every == 0 and not last

    def begin_epoch(self) -> float:
        """Set all schedules of this epoch and return its learning rate.

        Random numbers that a step draws (the noise control) depend on seed, epoch and rank alone.
        """
        spec = self.recipe.train
        rate = learning_rate(spec, self.epoch)
        set_learning_rate(self.parts.optimizer, rate)
        on_epoch(self.parts.model, self.epoch, spec.epochs)
        if not self.options.shared:
            torch.manual_seed(step_seed(self.seed, self.epoch, self.world.rank))
        self.parts.model.train()
        return rate

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

    def _recalibrate(self) -> None:
        """Let norms see the weights of inference, on full training batches of this epoch."""
        loader = self.train_loader
        full = max(1, len(self.sets[0]) // loader.batch_size)
        with self.train_step.autocast():
            images = (images for images, _ in loader.batches(self.epoch))
            recalibrate_norms(self.parts.model, islice(images, full))

    def _delivered(self) -> Row:
        """Return the mean delivered dose over the layers, in the epochs when it is measured."""
        last = self.epoch + 1 == self.recipe.train.epochs
        if self.meter is None or not (last or self.epoch % self.options.dose_every == 0):
            return {}
        part, _ = next(self.batches())
        part = part.part(0, -(-len(part) // self.recipe.train.accumulate))
        # The bare model: the other ranks take no part in this.
        doses = self.meter.measure(lambda: self.train_step.compute(self.parts.model, part)[0])
        return {"delivered": sum(doses.values()) / len(doses)}

    def _diverged(self) -> DivergedError:
        where = first_bad_layer(self) or first_bad_state(self.parts.model) or "the loss alone"
        kept = f"The last good checkpoint is kept in {self.folder.checkpoints}."
        return DivergedError(
            f"Training diverged in epoch {self.epoch} of {self.recipe.name}: {where} is not "
            f"finite. {kept if self.folder.begun else 'No checkpoint was written yet.'}"
        )

    def evaluate(self) -> tuple[float, float]:
        """Return (the recipe's metric in percent, loss) on what is tested on."""
        self.parts.model.eval()
        plan = self.test_loader.plan(0)
        for index in range(len(self.test_loader)):
            part = self.test_loader.part(plan, index)
            if len(part):  # a small last batch may leave nothing for some rank
                self.test(part)
        loss, hits, count, ranked = self.test_step.sums.read()
        if isinstance(self.test_step, RankedTest):
            self.scores = {"top5": 100 * ranked / count}
        if not isinstance(self.test_step, TextTest):
            return 100 * hits / count, loss / count
        self.scores = self.test_step.scores()
        # The first metric decides, and is reported by its own name.
        return self.scores.pop(self.recipe.metric), loss / count
