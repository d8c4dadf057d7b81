"""The queue of a table: which runs are missing, which are half done, what fits the time."""

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from surge.recipes.recipe import Recipe
from surge.study.results import Result, data_name, select
from surge.train.run import RunFolder


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


def expected_seconds(job: Job, results: Sequence[Result], hardware: str) -> float | None:
    """Return how long this run should take, from a stored one of the same row, if there is one."""
    rates = [r.seconds / r.epochs for r in select(results, row=job.recipe.row, hardware=hardware)]
    return rates[-1] * job.recipe.train.epochs if rates else None


def fitting(
    jobs: Sequence[Job], results: Sequence[Result], hardware: str, deadline: float | None
) -> Iterator[Job]:
    """Yield the jobs in order as long as time is left; a run known to be too long is passed over.

    A begun run is always continued: it stops at the deadline and goes on the next time. Results
    that are added to ``results`` meanwhile are taken into account.
    """
    for job in jobs:
        if deadline is not None:
            left = deadline - time.monotonic()
            expected = expected_seconds(job, results, hardware)
            if left <= 0:
                return
            if not job.begun and expected is not None and expected > left:
                continue
        yield job
