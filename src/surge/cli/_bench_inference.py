"""The work behind ``surge bench infer``."""

from __future__ import annotations

import math
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from rich.console import Console

from surge.cli._bench_reporting import Found, report
from surge.cli._bench_rows import Place
from surge.cli.console import progress, say
from surge.errors import ConfigError, ExportError, MissingDependencyError
from surge.export.load import load_packed
from surge.study import figures
from surge.study.bench import latency, latency_figures
from surge.study.bench.contenders import (
    ENGINES,
    INSTALL,
    Contender,
    Trial,
    missing_engines,
    prepare,
    start,
    trial,
)
from surge.study.bench.latency import OURS, Row, Step
from surge.study.bench.timing import interleaved
from surge.study.bench.unpacking import workload_of
from surge.study.bench.workloads import NETWORKS, Workload, with_batch, workload

if TYPE_CHECKING:
    from surge.cli.bench import BenchInferCommand

DEFAULT = "resnet18-224"
BATCHES = (1, 2, 4, 8)
SPINNING = 0.002
"""Seconds that thread pools of others get to fall asleep before the next turn."""


def bench_infer(command: BenchInferCommand, console: Console) -> list[Row]:
    """Measure every network, print and draw it, write what was asked for; return the rows."""
    _check(command)
    place = Place.here(command.threads)
    absent = missing_engines()
    names: Sequence[str] = command.network or (() if command.file else (DEFAULT,))
    rows: list[Row] = []
    profiles: dict[str, list[Step]] = {}
    if command.file is not None:
        found, work = measure_file(command.file, command, place, absent, console)
        report(command.file.name, found, work, command, console)
        rows += found.rows
        profiles[command.file.stem] = found.steps
    for name in names:
        work = with_batch(workload(name, size=command.size), command.batch)
        console.print(f"{name}: {work.about}", markup=False)
        found = measure(work, command, place, absent, console)
        report(name, found, work, command, console)
        rows += found.rows
        profiles[name] = found.steps
        if command.sweep:
            rows += sweep(name, command, place, console)
    for engine, how in absent.items():
        console.print(f"not installed: {engine} ({how})", markup=False)
    if command.json is not None:
        written = figures.write_json(latency.as_json(rows, profiles), command.json)
        say(console, f"wrote {written}")
    if command.results is not None:
        console.print(f"stored in {latency.append(command.results, rows)}", markup=False)
    return rows


def _check(command: BenchInferCommand) -> None:
    for name in ("threads", "batch"):
        if getattr(command, name) < 1:
            raise ConfigError(f"--{name} {getattr(command, name)} must be at least 1.")
    if not 0 < command.seconds < math.inf:
        raise ConfigError(f"--seconds {command.seconds:g} must be more than 0, and finite.")
    _check_file(command)
    if OURS in missing_engines():
        raise MissingDependencyError(f"surge bench infer needs the engine: {INSTALL[OURS]}")
    for name in command.network:
        if name not in NETWORKS:
            workload(name)
    figures.require()  # now, not after the work


def _check_file(command: BenchInferCommand) -> None:
    """Refuse a file that is not there, and what only networks by name can take."""
    if command.file is None:
        return
    if not command.file.is_file():
        raise FileNotFoundError(2, "there is no packed file", str(command.file))
    for name, default in (("network", ()), ("size", None), ("sweep", False)):
        if getattr(command, name) != default:
            raise ConfigError(f"--{name} is not for a packed file: leave it or {command.file} out.")


def measure(
    work: Workload,
    command: BenchInferCommand,
    place: Place,
    absent: dict[str, str],
    console: Console,
    *,
    packed: Path | None = None,
) -> Found:
    """Write the network for every engine, try each on its own, then time all in turns."""
    engines = tuple(engine for engine in ENGINES if engine not in absent)
    batch = work.example.numpy()
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # ours would spin beside those that are measured
    try:
        with (
            tempfile.TemporaryDirectory() as folder,
            progress(console, "prepare", total=len(engines)) as advance,
        ):
            ready: list[Contender] = []
            trials: dict[str, Trial] = {}
            for contender in prepare(work, Path(folder), engines, packed=packed):
                trials[contender.engine] = trial(contender, batch.shape, command.threads)
                ready.append(contender)
                advance(contender.engine)
            failures = {name: t.failure for name, t in trials.items() if t.failure}
            able = [contender for contender in ready if contender.engine not in failures]
            calls = {c.engine: start(c, batch, command.threads) for c in able}
            differences = _differences(work, able, calls)
            pause = SPINNING if command.threads > 1 else 0.0
            timed = interleaved(calls, seconds=command.seconds, pause=pause)
            rows = [
                replace(
                    row,
                    peak_bytes=trials[row.engine].peak_bytes,
                    difference=differences[row.engine],
                )
                for row in place.rows(work.name, able, timed, batch, work.layers)
            ]
            steps = profile(next(c.path for c in able if c.engine == OURS), batch, command.threads)
    finally:
        torch.set_num_threads(threads)
    return Found(rows, steps, failures)


def measure_file(
    path: Path,
    command: BenchInferCommand,
    place: Place,
    absent: dict[str, str],
    console: Console,
) -> tuple[Found, Workload | None]:
    """Time a packed file beside the others; by itself if its network cannot be rebuilt."""
    try:
        loaded = load_packed(path)
    except ValueError as error:  # the engine's word for a damaged file
        raise ConfigError(str(error)) from error
    try:
        work = with_batch(workload_of(path), command.batch)
    except ExportError as error:
        console.print(f"{path.name} is timed by itself: {error}", style="yellow", markup=False)
        return _by_itself(path, loaded.input_shape, command, place), None
    others = {**absent, "surge int8": ""}
    return measure(work, command, place, others, console, packed=path), work


def _by_itself(
    path: Path, input_shape: tuple[int, ...], command: BenchInferCommand, place: Place
) -> Found:
    shape = (command.batch, *input_shape)
    batch = np.random.default_rng(0).standard_normal(shape, dtype=np.float32)
    contender = Contender(OURS, path, binary=True)
    tried = trial(contender, shape, command.threads)
    call = start(contender, batch, command.threads)
    timed = interleaved({OURS: call}, seconds=command.seconds)
    (row,) = place.rows(path.stem, [contender], timed, batch)
    steps = profile(path, batch, command.threads)
    return Found([replace(row, peak_bytes=tried.peak_bytes)], steps, {})


def _differences(
    work: Workload, contenders: Sequence[Contender], calls: dict[str, Any]
) -> dict[str, float]:
    """Return how far each engine is from torch on this input: a fast wrong answer is none."""
    with torch.no_grad():
        wanted = {
            True: work.binary(work.example).numpy(),
            False: work.floating(work.example).numpy(),
        }
    found = {}
    for contender in contenders:
        truth = wanted[contender.binary]
        error = np.linalg.norm(calls[contender.engine]() - truth)
        found[contender.engine] = float(error / max(np.linalg.norm(truth), 1e-12))
    return found


def profile(path: Path, batch: Any, threads: int) -> list[Step]:
    """Return the median time of each step of a packed network."""
    import surge_runtime

    model = surge_runtime.load(path, threads=threads)
    taken = [model.profile(batch) for _ in range(10)][1:]
    return [
        Step(name, kind, float(np.median([run[index][2] for run in taken])))
        for index, (name, kind, _) in enumerate(taken[0])
    ]


def sweep(name: str, command: BenchInferCommand, place: Place, console: Console) -> list[Row]:
    """Time the packed network and onnxruntime over image sizes and batches; draw both."""
    network = NETWORKS[name]
    usual = network.shape[-1]
    sizes = [size for size in network.sizes if size != usual]
    engines = tuple(e for e in (OURS, latency.BASE) if e in ENGINES and e not in missing_engines())
    points = len(sizes) + len(BATCHES)
    seconds = max(command.seconds / points, 0.5)
    rows: list[Row] = []
    with progress(console, "sweep", total=points) as advance:
        for size in [*sizes, usual]:
            work = workload(name, size=size if network.sizes else None)
            batches = BATCHES if size == usual else (1,)
            for found in _swept(work, batches, engines, command, place, seconds):
                rows += found
                words = f"size {size}, batch {found[0].batch}: {found[0].median_ms:.3f} ms"
                advance(words)
    for sentence in latency.growth(rows):
        console.print(sentence, markup=False)
    figure = latency_figures.draw_sweep(rows, name)
    path = command.out / f"{name}-sweep.png"
    for written in figures.save(figure, [vars(row) for row in rows], path):
        say(console, f"wrote {written}")
    return rows


def _swept(
    work: Workload,
    batches: Sequence[int],
    engines: tuple[str, ...],
    command: BenchInferCommand,
    place: Place,
    seconds: float,
) -> Iterator[list[Row]]:
    """Write a network's files once and time them with every batch."""
    with tempfile.TemporaryDirectory() as folder:
        ready = list(prepare(work, Path(folder), engines))
        for count in batches:
            batch = with_batch(work, count).example.numpy()
            calls = {c.engine: start(c, batch, command.threads) for c in ready}
            timed = interleaved(calls, seconds=seconds)
            yield place.rows(work.name, ready, timed, batch, work.layers)
