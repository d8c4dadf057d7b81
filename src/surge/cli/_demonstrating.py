"""The work behind ``surge demo``."""

from __future__ import annotations

import multiprocessing
import os
import shutil
import signal
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from rich.console import Console

from surge.cli._progress import conclude
from surge.cli._training import environment_of, run_in
from surge.cli.console import print_table, progress, say
from surge.cli.export import load_run
from surge.cli.toy import toy_study
from surge.data import load_digits
from surge.errors import ConfigError, SurgeError
from surge.files import write_whole
from surge.recipes import get_recipe
from surge.recipes.recipe import Recipe
from surge.study import figures, learning, results
from surge.study.demo import demo, demo_engine, demo_page
from surge.study.queue import Job, Plan, missing
from surge.study.report.page import write_report
from surge.study.tables import TableRow, make_rows
from surge.study.theory.toy import ToyOptions
from surge.train.build import load_sets
from surge.train.loop import LoopOptions, Outcome
from surge.train.run import RunFolder

if TYPE_CHECKING:
    from surge.cli.demo import DemoCommand

CPU = torch.device("cpu")
MARKER = ".surge-demo"
"""The file that tells the folder of a demo from one with somebody's own runs."""
PARTS = ("toy", "digits", "results", "runs", "report.html")
"""What a demo writes in its folder."""
QUICK_TOY = ToyOptions(seeds=4, steps=60, inputs=4, hidden=17)
Finished = tuple[Job, Outcome, dict[str, Any]]


def demonstrate(command: DemoCommand, console: Console) -> Path:
    """Run the toy problem and the digits, write the page, print its path; return it."""
    begun = time.monotonic()
    demo.check_ready(command.out)
    workers = usable_cores() if command.workers is None else command.workers
    if workers < 1:
        raise ConfigError(f"--workers {workers} must be at least 1.")
    claim(command.out)
    options = QUICK_TOY if command.quick else ToyOptions()
    logs, claims, _ = toy_study(options, command.out / "toy", console)
    console.print(f"toy problem: {demo.verdicts(claims)}\n", markup=False)
    recipes = demo.digits_recipes(2 if command.quick else None)
    seeds = (0,) if command.quick else (0, 1, 2)
    table, runs = digits_study(recipes, seeds, command.out, workers, console)
    shipping = ship_digits(recipes, command.out, console, quick=command.quick)
    environment = environment_of(CPU, 0, None, {})
    report, cost = demo.example_network()
    found = demo_page.Findings(
        options=options,
        logs=logs,
        claims=claims,
        table=table,
        runs=runs,
        report=report,
        cost=cost,
        environment=environment,
        workers=workers,
        seconds=time.monotonic() - begun,
        shipping=shipping,
    )
    page = write_report(
        command.out / "report.html",
        demo_page.TITLE,
        demo_page.make_sections(found),
        lead=demo_page.LEAD,
        foot=demo_page.FOOT,
    )
    say(console, f"The page: {page.resolve()} ({time.monotonic() - begun:.0f} s)", style="bold")
    return page


def claim(out: Path) -> None:
    """Mark a folder as that of a demo; one where somebody else's files are in the way is refused.

    Raises:
        ConfigError: no demo is known to have made what is there.
    """
    marker = out / MARKER
    taken = [name for name in PARTS if (out / name).exists()]
    if taken and not marker.exists():
        raise ConfigError(
            f"--out {out} holds {', '.join(taken)}, and no {MARKER} says that a demo made that: "
            "choose another folder, or move it away."
        )
    write_whole(marker, b"The next surge demo replaces what this one made here.\n")


def usable_cores() -> int:
    """Return how many runs to train at once: the cores of this process, at most four."""
    # Not on every system.
    affinity = getattr(os, "sched_getaffinity", None)
    cores = len(affinity(0)) if affinity else os.cpu_count() or 1
    return min(cores, 4)


def digits_study(
    recipes: Sequence[Recipe], seeds: Sequence[int], out: Path, workers: int, console: Console
) -> tuple[list[TableRow], list[learning.Run]]:
    """Train every recipe with every seed, store and print the table, draw the curves."""
    jobs = missing([Plan(recipe) for recipe in recipes], seeds, [], out / "runs")
    where = out / "results"
    _clear(jobs)
    quiet = Console(quiet=True)
    stored: list[results.Result] = []
    with progress(console, "digits", total=len(jobs)) as advance:
        for job, outcome, environment in _trained(jobs, workers):
            folder = RunFolder(job.folder)
            made = conclude(folder, job.recipe, outcome, environment, where, quiet)
            if made is not None:
                stored.append(made)
            advance(f"{demo.ARMS[job.recipe.row]}, seed {job.seed}: {outcome.last:.1f} %")
    table = make_rows(recipes, stored)
    print_table(
        console, demo.digits_rows(table), title="Digits, test accuracy", columns=demo.DIGITS_COLUMNS
    )
    runs = [
        learning.Run(demo.ARMS[job.recipe.row], job.seed, RunFolder(job.folder).metrics())
        for job in jobs
    ]
    rows = learning.make_rows(runs)
    figures.save(learning.draw(rows), rows, out / "digits" / "learning.png")
    return table, runs


def ship_digits(
    recipes: Sequence[Recipe], out: Path, console: Console, *, quick: bool
) -> demo_engine.Shipping:
    """Pack the trained ReCU network of seed 0, run it in the engine, print it beside float."""
    jobs = missing([Plan(recipe) for recipe in recipes], (0,), [], out / "runs")
    folders = {job.recipe.row: job.folder for job in jobs}
    _, floating, *_ = load_run(folders["cnn-float"])
    _, binary, _, facts, _ = load_run(folders["cnn-recu"])
    shipping = demo_engine.ship(
        binary,
        floating,
        load_digits("test"),
        out / "digits" / "recu.surge",
        seconds=0.2 if quick else demo_engine.SECONDS,
        **facts,
    )
    if shipping.served:
        rows = demo_engine.rows(shipping)
        print_table(console, rows, title="As one file", columns=demo_engine.COLUMNS)
    say(console, f"{demo_engine.sentence(shipping)}\n")
    return shipping


def _clear(jobs: Sequence[Job]) -> None:
    """Remove the runs of an earlier demo, and nothing else."""
    for job in jobs:
        if RunFolder(job.folder).there:
            shutil.rmtree(job.folder)


def _trained(jobs: Sequence[Job], workers: int) -> Iterator[Finished]:
    """Yield the jobs as they end, several at a time in processes of their own.

    Each trains with one thread: on networks this small that uses two cores better than two threads
    of one run, and beside a busy neighbour threads only wait for each other.
    """
    if workers == 1:
        yield from map(train_job, jobs)
        return
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(
        min(workers, len(jobs)), mp_context=context, initializer=_die_silently
    ) as pool:
        waiting = [pool.submit(train_job, job) for job in jobs]
        try:
            for future in as_completed(waiting):
                yield future.result()
        except BrokenProcessPool as error:
            raise SurgeError(
                "A training process was ended from outside, perhaps for want of memory; try "
                "--workers 1."
            ) from error
        finally:
            pool.shutdown(wait=False, cancel_futures=True)


def _die_silently() -> None:
    """Let Ctrl-C end a worker without a traceback of its own."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def train_job(job: Job) -> Finished:
    """Train one job on one thread, silently."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        epochs = job.recipe.train.epochs
        own = epochs == get_recipe(job.recipe.name).train.epochs
        environment = environment_of(CPU, job.seed, None, {} if own else {"epochs": epochs})
        folder = RunFolder.create(job.folder, job.recipe, environment, anew=True)
        sets = load_sets(job.recipe.data, Path())
        quiet = Console(quiet=True)
        outcome = run_in(folder, job.recipe, sets, environment, CPU, LoopOptions(), quiet)
        return job, outcome, environment
    finally:
        torch.set_num_threads(threads)
