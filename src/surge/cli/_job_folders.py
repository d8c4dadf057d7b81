"""The folders of the runs of a table: those that a job builds on, and its own."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from surge.cli._training import environment_of, note_shared
from surge.errors import CheckpointMismatchError
from surge.recipes.placing import start_of, teacher_of, with_start, with_teacher
from surge.study.queue import Job, Plan, folder_of
from surge.train.budget import as_begun
from surge.train.run import RunFolder

if TYPE_CHECKING:
    import torch

    from surge.cli.reproduce import ReproduceCommand


def with_others(job: Job, plans: list[Plan], command: ReproduceCommand) -> Job:
    """Return a job with the runs it builds on, which must be there: a teacher, a first stage."""
    recipe = job.recipe

    def run_of(name: str) -> str:
        other = next(plan for plan in plans if plan.recipe.name == name)
        path = folder_of(other, job.seed, command.runs)
        if not RunFolder(path).begun:
            raise CheckpointMismatchError(
                f"{job.recipe.name}, seed {job.seed} builds on {path}, which holds no checkpoint. "
                f"Train it with: surge train {name} --seed {job.seed} --out {path}"
                f"{'' if command.model is None else f' --model {command.model}'}"
            )
        return str(path)

    if recipe.distill is not None:
        recipe = with_teacher(recipe, run_of(teacher_of(recipe)))
    if "start" in recipe.model.options:
        recipe = with_start(recipe, run_of(start_of(recipe)))
    return replace(job, recipe=recipe)


def as_it_began(job: Job) -> Job:
    """Return a begun job with the steps that it was fitted with, if it was: not to be fitted anew.

    What else differs from its folder stays, to be refused.
    """
    if job.plan.given is None or not job.begun:
        return job
    return replace(job, recipe=as_begun(job.recipe, job.folder))


def open_folder(
    job: Job, command: ReproduceCommand, device: torch.device, side_by_side: int
) -> tuple[RunFolder, dict[str, Any]]:
    """Return the folder of a begun run as it is, and a new one for every other.

    It remembers how many runs shared the machine, at most: the seconds of a run depend on that.
    """
    if not job.begun:
        changes = dict(job.overrides)
        environment = environment_of(device, job.seed, command.commit, changes)
        environment["side_by_side"] = side_by_side
        folder = RunFolder.create(job.folder, job.recipe, environment, anew=True)
        return folder, environment
    folder, recipe, environment = RunFolder.open(job.folder)
    same = replace(recipe, paper=None) == replace(job.recipe, paper=None)
    if not same or int(environment["seed"]) != job.seed:
        raise CheckpointMismatchError(
            f"{job.folder} holds a begun run of {recipe.name}, seed {environment['seed']}, with "
            "other settings than the recipe has now. Finish it with "
            f"`surge train --resume {job.folder}`, or move it away."
        )
    here = environment_of(device, job.seed, command.commit, {})
    environment = folder.went_on(recipe, environment, here)
    note_shared(folder, environment, side_by_side)
    return folder, environment
