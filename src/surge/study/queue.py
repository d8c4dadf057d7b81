"""The queue of a table: which runs are missing, which are half done, what fits the time."""

import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from surge.recipes.placing import start_of, teacher_of
from surge.recipes.recipe import Recipe
from surge.study.results import Result, data_name, select, setting_of
from surge.train.budget import seconds_of
from surge.train.run import RunFolder

Key = tuple[str, int]
"""The name of a recipe, and a seed."""


@dataclass(frozen=True)
class Plan:
    """A recipe that is to be run, and what was changed in it, as results record it."""

    recipe: Recipe
    overrides: Mapping[str, Any] = field(default_factory=dict)

    @property
    def given(self) -> str | None:
        """The time that the schedule is fitted to, if it is."""
        found: str | None = self.overrides.get("budget")
        return found

    def among(self, results: Sequence[Result], **wanted: object) -> list[Result]:
        """Return the stored runs of this plan, whatever their length, that are as wanted."""
        return select(
            results,
            row=self.recipe.row,
            data=data_name(self.recipe),
            setting=setting_of(self.overrides),
            **wanted,
        )


@dataclass(frozen=True)
class Job:
    """A run that is not stored yet."""

    recipe: Recipe
    seed: int
    folder: Path
    overrides: Mapping[str, Any] = field(default_factory=dict)

    @property
    def plan(self) -> Plan:
        """What it is a run of."""
        return Plan(self.recipe, self.overrides)

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


def folder_of(plan: Plan, seed: int, runs: Path) -> Path:
    """Return where the run of a plan and a seed is kept."""
    recipe, length = plan.recipe, plan.given or f"{plan.recipe.train.epochs}ep"
    name = f"{recipe.name}-{length}{'-val' * recipe.data.held_out}"
    if recipe.data.size is not None:
        name += f"-{recipe.data.size}px"
    return runs / f"{name}-seed{seed}"


def missing(
    plans: Sequence[Plan], seeds: Sequence[int], results: Sequence[Result], runs: Path
) -> list[Job]:
    """Return the runs to do: begun ones first, then seed by seed so that pairs complete."""
    jobs = []
    for seed in seeds:
        for plan in plans:
            recipe = plan.recipe
            # How many epochs fit a time is not known before.
            length = {} if plan.given else {"epochs": recipe.train.epochs}
            if not plan.among(results, seed=seed, metric=recipe.metric, **length):
                jobs.append(Job(recipe, seed, folder_of(plan, seed, runs), plan.overrides))
    return sorted(jobs, key=lambda job: not job.begun)


def expected_seconds(
    job: Job, results: Sequence[Result], hardware: str, side_by_side: int = 1
) -> float | None:
    """Return how long this run should take, from a stored one of the same row, if there is one.

    One that is fitted to a time takes that, after a trial. One on other data or with other settings
    tells nothing. Runs with more neighbours than this one will have took too long to tell. Those
    with fewer say how long it takes at least.
    """
    if job.plan.given is not None:
        return seconds_of(job.plan.given)
    known = [
        r for r in job.plan.among(results, hardware=hardware) if r.side_by_side <= side_by_side
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
