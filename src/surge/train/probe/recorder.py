"""Keeps the probe's records of a run: ``probe.jsonl`` and ``probe-maps/`` in its folder."""

from __future__ import annotations

import io
import json
import time
from collections.abc import Iterator
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from surge.compensation.auxiliary import AuxiliaryPath
from surge.compensation.premises import measure_premises
from surge.errors import ConfigError
from surge.files import atomic
from surge.train.probe.dose import undisturbed
from surge.train.probe.record import Probe
from surge.train.run import RunFolder
from surge.train.watch import bits_of

if TYPE_CHECKING:
    from surge.data import EpochPlan
    from surge.train.loop import Trainer

EVERY, MOST = 10, 20
"""Epochs from one record to the next by default, unless that gives more records than this; the last
epoch is always recorded."""
SHARE = 0.02
"""Of the time of a run that records may take by default; more of them are left out."""
SAMPLES = 32
"""Most samples of the recorded batch."""
THEOREM_BATCHES, THEOREM_SAMPLES = 32, 256
"""Batches over which the theorem's premises are measured, and most samples of each."""


def make_recorder(trainer: Trainer, *, synced: bool) -> Recorder | None:
    """Return the recorder that a run asks for, on the process that leads.

    Raises:
        ConfigError: norms wait for all processes, and one of them alone would wait for ever.
    """
    every = trainer.options.record_every
    if every is None:
        return None
    if synced:
        raise ConfigError(
            "--record looks at one process alone, which norms over all processes do not allow; "
            "record a run in one process, or without sync_norm."
        )
    if not trainer.world.leads:
        return None
    share = None if every else SHARE
    every = every or default_every(trainer.recipe.train.epochs)
    return Recorder(trainer, every=every, share=share, theorem=trainer.options.record_theorem)


def default_every(epochs: int) -> int:
    """Return the epochs from one record to the next, for a run of so many.

    >>> default_every(60), default_every(600)
    (10, 30)
    """
    return max(EVERY, -(-epochs // MOST))


class Recorder:
    """Decides which epochs are recorded, and writes what the probe found.

    With ``share``, epochs between the first and the last are passed over as long as records have
    taken more than that of the time. ``theorem`` also measures the optimal scale and the
    corollary's premises against a smooth network, over several batches: that costs as much as a
    hundred steps.
    """

    def __init__(
        self,
        trainer: Trainer,
        *,
        every: int = EVERY,
        share: float | None = None,
        theorem: bool = False,
    ) -> None:
        """Prepare to look at a trainer's model."""
        self.trainer, self.every, self.share, self.theorem = trainer, every, share, theorem
        self.begun, self.spent, self.due = time.monotonic(), 0.0, False
        self.probe = Probe(trainer.parts.model, trainer.meter)
        self.bits: dict[str, Tensor] = {}
        self.fresh = True

    def _due(self) -> bool:
        trainer = self.trainer
        if trainer.epoch in (0, trainer.recipe.train.epochs - 1):
            return True
        if trainer.epoch % self.every:
            return False
        trained = time.monotonic() - self.begun - self.spent
        return self.share is None or self.spent <= self.share * trained

    def begin_epoch(self) -> None:
        """Remember the bits, if this epoch is recorded; forget records of a lost future."""
        if self.fresh:
            keep_records(self.trainer.folder, self.trainer.epoch)
            self.fresh = False
        self.due = self._due()
        self.bits = self._now() if self.due else {}

    @torch.no_grad()
    def _now(self) -> dict[str, Tensor]:
        return {name: bits_of(layer) for name, layer in self.probe.layers.items()}

    def end_epoch(self) -> None:
        """Measure and write, if this epoch is recorded."""
        if not self.due or not self.probe.layers:
            return
        trainer, begun = self.trainer, time.monotonic()
        first = next(self._parts(SAMPLES))
        layers, mapped = self.probe.measure(lambda: self._loss(first))
        for name, now in self._now().items():
            if name in layers and name in self.bits:
                layers[name]["flips"] = 100 * float((now != self.bits[name]).float().mean())
        spent = round(time.monotonic() - begun, 4)
        self.spent += spent
        row: dict[str, Any] = {"epoch": trainer.epoch, "seconds": spent, "layers": layers}
        if self.theorem and trainer.parts.compensation is not None:
            row["theorem"] = self._premises()
        if mapped:
            row["mapped"] = self.probe.mapped
            save_map(trainer.folder, trainer.epoch, mapped)
        with (trainer.folder.path / "probe.jsonl").open("a") as file:
            file.write(json.dumps(row) + "\n")

    def _parts(self, most: int) -> Iterator[EpochPlan]:
        """Yield the first samples of every batch of this epoch."""
        for part, _ in self.trainer.batches():
            yield part.part(0, min(most, len(part)))

    def _loss(self, part: EpochPlan) -> Tensor:
        # The bare model: the other ranks take no part in this.
        return self.trainer.train_step.compute(self.trainer.parts.model, part)[0]

    def _premises(self) -> dict[str, dict[str, float | int | None]]:
        compensation, model = self.trainer.parts.compensation, self.trainer.parts.model
        assert compensation is not None
        paths = [p for p in compensation.paths.values() if isinstance(p, AuxiliaryPath)]
        # Noise has no gradient to compare.
        if not paths or paths[0].options.noise:
            return {}
        # One after the other: a loader that streams holds one batch.
        parts = islice(self._parts(THEOREM_SAMPLES), THEOREM_BATCHES)
        losses = (partial(self._loss, part) for part in parts)
        with undisturbed(model):
            model.train()
            return measure_premises(model, compensation, losses)


def save_map(folder: RunFolder, epoch: int, mapped: dict[str, Tensor]) -> None:
    """Write one heat map; half precision keeps it small and is enough for a picture."""
    arrays = {
        key: tensor.numpy() if tensor.dtype == torch.bool else _scaled(tensor)
        for key, tensor in mapped.items()
    }
    buffer = io.BytesIO()
    np.savez_compressed(buffer, **arrays)  # type: ignore[arg-type]
    path = folder.path / "probe-maps" / f"epoch{epoch:04d}.npz"
    path.parent.mkdir(exist_ok=True)
    with atomic(path) as file:
        file.write(buffer.getvalue())


def _scaled(tensor: Tensor) -> Any:
    """Return float32 rounded to three digits or so, which compresses well."""
    return (tensor.view(torch.int32) & ~0x1FFF).view(torch.float32).numpy()


def read_records(folder: RunFolder) -> list[dict[str, Any]]:
    """Return the records of a run in order."""
    return folder.rows("probe.jsonl")


def keep_records(folder: RunFolder, epochs: int) -> None:
    """Forget records of epochs that will be trained again."""
    if (folder.path / "probe.jsonl").exists():  # perhaps with half a line at its end
        kept = [row for row in read_records(folder) if row["epoch"] < epochs]
        folder.write("probe.jsonl", "".join(json.dumps(row) + "\n" for row in kept))
