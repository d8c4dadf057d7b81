"""Several runs in one process at the same time: one fills the pauses of another.

Each run has a thread and a stream of its own; what they compute is what each computes alone. All
are built before the first begins, because building uses what a process has only once: torch's
generator, and the tracer that looks at a model.
"""

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, nullcontext

import torch

from surge.recipes.recipe import Recipe
from surge.train.loop import Outcome
from surge.train.watch import DivergedError


def stream_of_its_own(device: torch.device) -> AbstractContextManager[object]:
    """Return a context in which all work of a thread goes to a new stream of the device."""
    if device.type != "cuda":
        return nullcontext()
    return torch.cuda.stream(torch.cuda.Stream(device))  # type: ignore[no-untyped-call]


def run_together(
    runs: Sequence[Callable[[], Outcome]], streams: Sequence[AbstractContextManager[object]]
) -> list[Outcome | DivergedError]:
    """Train all runs, each in its own context; a run that diverges does not stop the others."""

    def train(run: Callable[[], Outcome], stream: AbstractContextManager[object]) -> object:
        try:
            with stream:
                return run()
        except DivergedError as error:
            return error

    if len(runs) == 1:
        return [train(runs[0], streams[0])]  # type: ignore[list-item]
    with ThreadPoolExecutor(len(runs)) as pool:
        return list(pool.map(train, runs, streams))  # type: ignore[arg-type]


def draws_in_steps(recipe: Recipe) -> bool:
    """Return whether training steps draw random numbers, from a generator that all runs share."""
    # A detector draws which anchors and regions count, and a BERT what it drops. The noise control
    # has random numbers of its own.
    return (
        recipe.data.name == "voc"
        or recipe.data.length is not None
        or (recipe.method is not None and bool(recipe.method.options.get("stochastic")))
    )
