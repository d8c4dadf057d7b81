"""The queue of a table: which runs are missing, which are half done, what fits the time."""

import time
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from surge.recipes.placing import start_of, teacher_of
from surge.recipes.recipe import Recipe
from surge.study.results import Result, data_name, select
from surge.train.run import RunFolder

Key = tuple[str, int]
"""The name of a recipe, and a seed."""


@dataclass(frozen=True)
class Job:
    """A run that is not stored yet."""

    recipe: Recipe
    seed: int
    folder: Path

    @property
    def begun(self) -> bool:
        """Whether a checkpoint is there to continue from."""
        return RunFolder(self.folder).begun

    @property
    def key(self) -> Key:
        """What tells it from the other jobs of a table."""
        return self.recipe.name, self.seed

    @property
    def needs(self) -> set[Key]:
        """The runs that it builds on: a teacher, a first stage."""
        names = [teacher_of(self.recipe)] if self.recipe.distill is not None else []
        names += [start_of(self.recipe)] if "start" in self.recipe.model.options else []
        return {(name, self.seed) for name in names}


def folder_of(recipe: Recipe, seed: int, runs: Path) -> Path:
    """Return where the run of a recipe and a seed is kept."""
    name = f"{recipe.name}-{recipe.train.epochs}ep{'-val' * recipe.data.held_out}"
    if recipe.data.size is not None:
        name += f"-{recipe.data.size}px"
    return runs / f"{name}-seed{seed}"


def missing(
    recipes: Sequence[Recipe], seeds: Sequence[int], results: Sequence[Result], runs: Path
) -> list[Job]:
    """Return the runs to do: begun ones first, then seed by seed so that pairs complete."""
    jobs = []
    for seed in seeds:
        for recipe in recipes:
            stored = select(
                results,
                row=recipe.row,
                seed=seed,
                epochs=recipe.train.epochs,
                data=data_name(recipe),
                metric=recipe.metric,
                setting="",
            )
            if not stored:
                jobs.append(Job(recipe, seed, folder_of(recipe, seed, runs)))
    return sorted(jobs, key=lambda job: not job.begun)


def expected_seconds(
    job: Job, results: Sequence[Result], hardware: str, side_by_side: int = 1
) -> float | None:
    """Return how long this run should take, from a stored one of the same row, if there is one.

    One on other data or with other settings tells nothing. Runs with more neighbours than this one
    will have took too long to tell. Those with fewer say how long it takes at least.
    """
    known = [
        r
        for r in select(
            results,
            row=job.recipe.row,
            hardware=hardware,
            data=data_name(job.recipe),
            setting="",
        )
        if r.side_by_side <= side_by_side
    ]
    nearest = max((r.side_by_side for r in known), default=0)
    rates = [r.seconds / r.epochs for r in known if r.side_by_side == nearest]
    return rates[-1] * job.recipe.train.epochs if rates else None


def fits(
    job: Job,
    results: Sequence[Result],
    hardware: str,
    deadline: float | None,
    side_by_side: int = 1,
) -> bool:
    """Return whether a run should begin now; one that is known to be too long should not.

    A begun run is always continued: it stops at the deadline and goes on the next time.
    """
    if deadline is None:
        return True
    expected = expected_seconds(job, results, hardware, side_by_side)
    return job.begun or expected is None or expected <= deadline - time.monotonic()


def fitting(
    jobs: Sequence[Job],
    results: Sequence[Result],
    hardware: str,
    deadline: float | None,
    side_by_side: int = 1,
) -> Iterator[Job]:
    """Yield the jobs in order as long as time is left; those that do not fit are passed over.

    Results that are added to ``results`` meanwhile are taken into account.
    """
    for job in jobs:
        if deadline is not None and deadline <= time.monotonic():
            return
        if fits(job, results, hardware, deadline, side_by_side):
            yield job


def next_ready(waiting: Sequence[Job], active: Collection[Key]) -> Job | None:
    """Return the first job that builds on none of those that wait or are being trained."""
    others = {job.key for job in waiting} | set(active)
    return next((job for job in waiting if not job.needs & others), None)
