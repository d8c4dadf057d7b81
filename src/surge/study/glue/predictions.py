"""The answers of stored runs: ``predictions.npz`` of a run folder, read with care.

``logits`` (float32 ``[N, outputs]``), ``labels`` ``[N]``, and ``section`` ``[N]``: the part of the
dev set that an example belongs to, 0 for the one that decides.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from surge.data.glue import get_task
from surge.data.glue_metrics import METRICS, Numbers, answers
from surge.errors import ConfigError
from surge.study.stored_runs import UNREADABLE, StoredRun
from surge.train.run import PREDICTIONS

NAMES = ("logits", "labels", "section")
DAMAGED = (*UNREADABLE, KeyError, AttributeError, MemoryError, NotImplementedError)
"""What numpy raises for a file that is none of its archives, or lacks an array."""


@dataclass(frozen=True, eq=False)
class Predictions:
    """What a run answered on the part of its dev set that decides."""

    path: Path
    answers: Numbers
    """Classes, or scores."""
    labels: Numbers


def has_predictions(run: StoredRun) -> bool:
    """Return whether a run is finished and its answers are stored."""
    return run.finished and (run.path / PREDICTIONS).exists()


def read_predictions(run: StoredRun) -> Predictions:
    """Return the answers of a stored run on GLUE.

    Raises:
        ConfigError: the file is damaged, or not of this run.
    """
    path, task = run.path / PREDICTIONS, get_task(run.recipe.data.name)
    logits, labels, section = _arrays(path)
    shape = (len(labels), task.outputs)
    if logits.shape != shape or labels.shape != section.shape or labels.ndim != 1:
        shapes = ", ".join(str(list(array.shape)) for array in (logits, labels, section))
        raise _error(
            path, f"{task.name} has {task.outputs} outputs, and {', '.join(NAMES)} are {shapes}"
        )
    if not (np.isfinite(logits).all() and np.isfinite(labels).all() and (section == 0).any()):
        raise _error(path, "some numbers are not finite, or no example decides")
    decides = section == 0
    found = answers(logits[decides].astype(np.float64)), labels[decides].astype(np.float64)
    value = METRICS[run.recipe.metric](*found)
    if run.last is None or abs(value - run.last) > 1e-3:
        raise _error(
            path, f"it scores {value:.4f}, and metrics.jsonl says {run.last} after the last epoch"
        )
    return Predictions(path, *found)


def _arrays(path: Path) -> list[NDArray[Any]]:
    try:
        with np.load(path, allow_pickle=False) as held:
            found = [np.asarray(held[name]) for name in NAMES]
    except DAMAGED as error:
        raise _error(path, f"{type(error).__name__}, {error}") from error
    if not all(array.ndim and array.dtype.kind in "fiu" for array in found):
        raise _error(path, f"{', '.join(NAMES)} are not all arrays of numbers")
    return found


def _error(path: Path, why: str) -> ConfigError:
    return ConfigError(
        f"{path} does not hold the predictions of its run: {why}. Copy the folder of the run anew "
        "(surge report RUN --keep FOLDER), or remove the file."
    )
