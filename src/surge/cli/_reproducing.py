"""The work behind ``surge reproduce``."""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from itertools import islice
from typing import TYPE_CHECKING, Any

from surge.cli._job_folders import as_it_began, open_folder, with_others
from surge.cli._planning import plans_of
from surge.cli._progress import conclude
from surge.cli._side_by_side import MPS, Crew, mps_runs, train_apart, workers_of
from surge.cli._stopping import stoppable
from surge.cli._training import check_workers, choose_device, deadline_of, fit, prepare_in
from surge.cli._voc_remarks import voc_remarks
from surge.cli.console import say
from surge.data import resolve_root
from surge.data.glue import find_file, get_task
from surge.errors import CheckpointMismatchError, ConfigError, DataNotFoundError
from surge.files import check_folder, nearest_folder
from surge.recipes import get_recipe, list_recipes
from surge.recipes.recipe import Recipe
from surge.study import results
from surge.study.bench import row_speed
from surge.study.glue import fixed_time
from surge.study.glue.glue_tables import averages_section, metrics_section
from surge.study.queue import Job, Plan, expected_seconds, fitting, missing
from surge.study.tables import make_rows, markdown, stored_rows
from surge.train.build import load_sets
from surge.train.distributed import World, process_count
from surge.train.loop import LoopOptions, Outcome
from surge.train.mode import choose_mode
from surge.train.processes.interleaved import draws_in_steps, run_together, stream_of_its_own
from surge.train.run import RunFolder, hardware
from surge.train.task import task_of
from surge.train.watch import DivergedError

if TYPE_CHECKING:
    from pathlib import Path

    import torch
    from rich.console import Console

    from surge.cli.reproduce import ReproduceCommand


def reproduce(command: ReproduceCommand, console: Console) -> int:
    """Do the missing runs that fit the budget, storing each as it ends; then print the table.

    Returns the number of runs that diverged, or failed in another way.
    """
    if command.table_only and command.table == "glue" and command.model is None:
        return _print_stored(command, console)
    plans = plans_of(command)
    nearest_folder(command.results, "--results")
    failed = 0 if command.table_only else _work(command, plans, console)
    stored = results.read(command.results, command.table)
    speeds = row_speed.columns(row_speed.read(command.results, command.table))
    recipes = [plan.recipe for plan in plans if plan.given is None]
    say(console, markdown(make_rows(recipes, stored), speeds))
    if command.table == "voc":
        say(console, voc_remarks(recipes))
    if command.table == "glue":
        shown = {(plan.recipe.row, results.data_name(plan.recipe)) for plan in plans}
        _print_glue([r for r in stored if (r.row, r.data) in shown], console)
    return failed


def _print_stored(command: ReproduceCommand, console: Console) -> int:
    """Print the rows of every network that is stored, each by the metric that decides."""
    wanted = {name: get_recipe(name).metric for name in list_recipes(command.table)}
    for row in command.rows:
        get_recipe(f"{command.table}-{row}")  # a mistyped one is said
    stored = results.read(command.results, command.table)
    stored = [r for r in stored if not command.rows or r.row in command.rows]
    decides = [r for r in stored if wanted.get(r.recipe, r.metric) == r.metric]
    kept = [r for r in decides if "budget" not in r.overrides]
    say(console, markdown(stored_rows(kept)))
    _print_glue(stored, console)
    return 0


def _print_glue(stored: list[results.Result], console: Console) -> None:
    """Print runs of a fixed time, other metrics, and averages of methods with all columns."""
    for section in (fixed_time.table(stored), metrics_section(stored), averages_section(stored)):
        if section:
            say(console, section)


@dataclass(frozen=True)
class _Work:
    """What is to be done, with what, until when."""

    command: ReproduceCommand
    plans: list[Plan]
    jobs: list[Job]
    stored: list[results.Result]
    root: Path
    device: torch.device
    deadline: float | None
    console: Console


def _work(command: ReproduceCommand, plans: list[Plan], console: Console) -> int:
    _check_jobs(command)
    for plan in plans:
        check_workers(command.workers, plan.recipe)
    device = choose_device(command.device)
    deadline = deadline_of(command.budget)
    root = resolve_root(command.data, os.environ)
    plans = _with_data(plans, root, console)
    stored = results.read(command.results, command.table)
    seeds = tuple(dict.fromkeys(command.seeds))
    jobs = missing(plans, seeds, stored, command.runs)
    if jobs:  # a full table can be printed from a place that takes no files
        check_folder(command.results, "--results")
        check_folder(command.runs, "--runs")
    console.print(f"{len(jobs)} of {len(plans) * len(seeds)} runs are missing")
    _check_together(command, [plan.recipe for plan in plans])
    work = _Work(command, plans, jobs, stored, root, device, deadline, console)
    with stoppable(console) as asked:  # processes of their own have their own way
        failed = _apart(work) if command.jobs > 1 else _here(work, asked)
    left = missing(plans, seeds, results.read(command.results, command.table), command.runs)
    if asked() and left:
        raise KeyboardInterrupt
    if deadline is not None and len(left) > failed:
        many = f"{len(left) - failed} left for another call: --budget was too short for them"
        say(console, f"{many}{_lengths(left, work)}")
    return failed


def _lengths(left: list[Job], work: _Work) -> str:
    """Say how long the rows take that were not begun, where that is known."""
    count = max(work.command.jobs, work.command.together)
    kind = hardware(work.device)
    waiting = {job.recipe.row: job for job in left if not job.begun}
    known = {row: expected_seconds(job, work.stored, kind, count) for row, job in waiting.items()}
    words = [f"{row} {seconds:.0f} s" for row, seconds in known.items() if seconds is not None]
    return f" (as stored: {', '.join(words)})" if words else ""


def _here(work: _Work, stop: Callable[[], bool]) -> int:
    """Do the jobs one after the other, or several at a time on streams of one GPU."""
    command, console, device, stored = work.command, work.console, work.device, work.stored
    # One set of images at a time: most tables have only one.
    load = lru_cache(1)(partial(load_sets, root=work.root, workers=command.workers))
    options = LoopOptions(
        deadline=work.deadline,
        stop=stop,
        shared=command.together > 1,
        compiled=command.compiled,
        captured=command.captured,
        workers=workers_of(command, command.together),
    )
    queue = fitting(work.jobs, stored, hardware(device), work.deadline, command.together)
    failed = 0
    while not stop() and (group := list(islice(queue, command.together))):
        begun: list[tuple[Job, RunFolder, dict[str, Any]]] = []
        runs: list[Callable[[], Outcome]] = []
        ready = _ready(group, work.plans, command, console)
        failed += len(group) - len(ready)
        if not ready:
            continue
        streams = [stream_of_its_own(device) if len(ready) > 1 else nullcontext() for _ in ready]
        for job, stream in zip(ready, streams, strict=True):
            sets = load(job.recipe.data)
            if job.plan.given is not None and not job.begun:
                fitted = fit(job.recipe, sets, job.plan.given, job.seed, device, options, console)
                job = replace(job, recipe=fitted)
            folder, environment = open_folder(job, command, device, len(ready))
            label = f"{job.recipe.row} {job.seed}" if command.together > 1 else ""
            with stream:
                prepare = partial(prepare_in, folder, job.recipe, sets, environment, device)
                runs.append(prepare(options, console, label=label))
            begun.append((job, folder, environment))
        for (job, folder, environment), outcome in zip(
            begun, run_together(runs, streams), strict=True
        ):
            if isinstance(outcome, DivergedError):  # the next runs do not depend on this one
                say(console, str(outcome), style="red")
                failed += 1
                continue
            made = conclude(folder, job.recipe, outcome, environment, command.results, console)
            if made is not None:
                stored.append(made)
    return failed


def _apart(work: _Work) -> int:
    """Do the jobs in processes of their own."""
    command, console, device, jobs = work.command, work.console, work.device, work.jobs
    for plan in work.plans:  # a mistake is better refused here than in every process
        fixed = task_of(plan.recipe.data).fixed
        choose_mode(device, World(), command.compiled, command.captured, fixed=fixed)
    if device.type == "cuda" and len(jobs) > 1 and not mps_runs():
        say(console, MPS, style="yellow")
    size = max(1, min(command.jobs, len(jobs)))
    crew = Crew(
        jobs,
        size,
        train_apart,
        (command, work.deadline, size),
        complete=partial(with_others, plans=work.plans, command=command),
        stored=work.stored,
        where=command.results,
        console=console,
        device=device,
        deadline=work.deadline,
    )
    return crew.work()


def _check_jobs(command: ReproduceCommand) -> None:
    processes = process_count(os.environ)
    if processes > 1:
        raise ConfigError(
            f"surge reproduce trains every run in one process, and torchrun started {processes}. "
            f"Drop torchrun, or train one row: torchrun ... -m surge train {command.table}-ROW "
            f"--results {command.results}"
        )
    if command.jobs < 1:
        raise ConfigError(f"--jobs {command.jobs} must be at least 1.")
    if command.jobs > 1 and command.together > 1:
        raise ConfigError(
            "--jobs trains runs side by side in processes of their own, --together in one process: "
            "leave one of them out."
        )


def _check_together(command: ReproduceCommand, recipes: list[Recipe]) -> None:
    if command.together < 1:
        raise ConfigError(f"together={command.together} must be at least 1 (--together).")
    if command.together == 1:
        return
    for recipe in recipes:
        if recipe.distill is not None or "start" in recipe.model.options:
            raise ConfigError(f"{recipe.name} builds on another run: leave --together out.")
        if draws_in_steps(recipe):
            raise ConfigError(
                f"{recipe.name} draws random numbers in every step, which runs side by side would "
                "take from each other: leave --together out."
            )


def _with_data(plans: list[Plan], root: Path, console: Console) -> list[Plan]:
    """Return the plans without the tasks of GLUE whose files are not there, and say so."""
    lacking: dict[str, DataNotFoundError] = {}
    for recipe in (plan.recipe for plan in plans):
        if recipe.data.length is not None:
            task = get_task(recipe.data.name)
            try:
                for part in ("train", *task.tests):
                    find_file(root, task, part)
            except DataNotFoundError as error:
                lacking[task.name] = error
    kept = [plan for plan in plans if plan.recipe.data.name not in lacking]
    if lacking and not kept:
        raise next(iter(lacking.values()))
    for sentence in lacking.values():
        say(console, f"left out: {sentence}", style="yellow")
    return kept


def _ready(
    group: list[Job], plans: list[Plan], command: ReproduceCommand, console: Console
) -> list[Job]:
    """Return the jobs whose teachers and first stages are there; say what the others lack."""
    ready = []
    for job in group:
        try:
            ready.append(as_it_began(with_others(job, plans, command)))
        except CheckpointMismatchError as error:
            say(console, str(error), style="red")
    return ready
