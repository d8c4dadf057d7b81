"""The work behind ``surge bench train``."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING

import torch
from rich.console import Console

from surge.cli._training import choose_device
from surge.cli.console import print_table, progress
from surge.errors import ConfigError, SurgeError
from surge.study import figures
from surge.study.bench import speed_table, training_speed
from surge.study.bench.ceilings import Ceilings, measured_ceilings
from surge.study.bench.elsewhere import Subject, built
from surge.study.bench.speed_figures import draw
from surge.study.bench.step_profile import Share, profile
from surge.study.bench.timing import Pairs, in_turns, turn
from surge.study.bench.training_networks import NETWORKS, check_width, known
from surge.study.bench.training_speed import MODES, REPLAYED, VARIANTS, Prepared, Row
from surge.train.run import git_state, hardware

if TYPE_CHECKING:
    from surge.cli.bench_train import BenchTrainCommand


DEFAULT: tuple[str, ...] = ("plain", "literal", "surge", "tied")
"""The variants that are compared where none is named."""


@dataclass(frozen=True)
class Job:
    """Steps that are timed in turns: they differ in their variant alone."""

    network: str
    batch: int
    width: int
    mode: str

    @property
    def own(self) -> bool:
        """Whether batch and width are those of the network."""
        return (self.batch, self.width) == (NETWORKS[self.network].batch, 1)

    def of(self, command: BenchTrainCommand) -> list[str]:
        """Return the variants to compare; the paper's form has no other mode than eager."""
        return [v for v in command.variants if v != "literal" or self.mode == "eager"]

    def prepare(self, variant: str, device: torch.device) -> Prepared:
        """Build one of the steps."""
        size = self.batch, self.width
        return training_speed.prepare(self.network, variant, self.mode, device, *size)


def bench_train(command: BenchTrainCommand, console: Console) -> None:
    """Measure every network, mode, batch and width that was asked for."""
    device = choose_device(command.device)
    command = _with_variants(command, console)
    modes = command.modes or (MODES if device.type == "cuda" else MODES[:1])
    _check(command, modes, device)
    if command.results is not None:
        command.results.mkdir(parents=True, exist_ok=True)
    ceilings = measured_ceilings(device)
    if ceilings is not None:
        console.print(
            f"This device: {ceilings.flops / 1e12:.0f} TFLOP/s in a bf16 matrix product, "
            f"{ceilings.bytes / 1e12:.2f} TB/s in a copy."
        )
    jobs = [
        Job(name, batch or NETWORKS[name].batch, width, mode)
        for name in command.network
        for batch in (command.batch or (0,))
        for width in command.width
        for mode in modes
    ]
    rows: list[Row] = []
    # One process holds one job at a time; processes of their own all build at once.
    groups = [[job] for job in jobs] if command.jobs == 1 else [jobs]
    with progress(console, "training steps", total=len(jobs)) as advance:
        for group in groups:
            wanted = [(job, variant) for job in group for variant in job.of(command)]
            with built(
                {(job, variant): partial(job.prepare, variant, device) for job, variant in wanted},
                jobs=command.jobs,
                patience=command.patience,
                on_failure=partial(_left_out, console),
            ) as steps:
                for job in group:
                    own = {v: steps[job, v] for v in job.of(command) if (job, v) in steps}
                    found = _measure(command, job, own, device, ceilings, console)
                    _store(found, command)
                    rows += found
                    wide = f", width {job.width}" if job.width > 1 else ""
                    advance(f"{job.network} {job.mode}, batch {job.batch}{wide}")
            torch._dynamo.reset()
    if not rows:
        raise SurgeError("No step was measured: those left out are named above.")
    _show(rows, console)
    paths = figures.save(draw(rows), [row.as_dict() for row in rows], command.out / "training.png")
    console.print(f"The picture: {paths[0]}")
    if command.json is not None:
        figures.write_json([row.as_dict() for row in rows], command.json)


def _with_variants(command: BenchTrainCommand, console: Console) -> BenchTrainCommand:
    """Return the command with its variants; the literal form is one where its file is."""
    if command.variants:
        return command
    variants = DEFAULT
    if not training_speed.LITERAL.exists():
        variants = tuple(v for v in DEFAULT if v != "literal")
        console.print("The literal form is left out: it is in a checkout of the repository alone.")
    return replace(command, variants=variants)


def _check(command: BenchTrainCommand, modes: Sequence[str], device: torch.device) -> None:
    for names, table, what in (
        (command.network, NETWORKS, "network"),
        (command.variants, dict.fromkeys(VARIANTS), "variant"),
        (modes, dict.fromkeys(MODES), "mode"),
    ):
        for name in names:
            known(name, table, what)
    for batch in command.batch:
        if batch < 2:
            raise ConfigError(f"--batch {batch} is too small: a BatchNorm needs two samples.")
    if command.jobs < 1:
        raise ConfigError(f"--jobs {command.jobs} must be at least 1.")
    if not 0 < command.seconds < math.inf:
        raise ConfigError(f"--seconds {command.seconds:g} must be more than 0, and finite.")
    for name in command.network:
        for width in command.width:
            check_width(name, width)
    if device.type != "cuda" and set(modes) & set(REPLAYED):
        raise ConfigError("A captured step needs a CUDA GPU; leave it out with --modes eager.")
    if command.profile and device.type != "cuda":
        raise ConfigError("--profile looks at the kernels of a GPU; leave it out on a CPU.")
    if "literal" in command.variants:
        training_speed.literal()
    if set(command.variants) == {"literal"} and "eager" not in modes:
        raise ConfigError("The literal form is eager: add --modes eager, or another variant.")
    figures.require()  # now, not after the work


def _store(rows: list[Row], command: BenchTrainCommand) -> None:
    """Append what is measured at once: a later failure loses nothing."""
    if command.results is None:
        return
    with (command.results / "training.jsonl").open("a") as file:
        file.writelines(json.dumps(row.as_dict()) + "\n" for row in rows)


def _left_out(console: Console, name: tuple[Job, str], words: str) -> None:
    job, variant = name
    console.print(f"{job.network} {variant} {job.mode} is left out:\n{words}", markup=False)


def _measure(
    command: BenchTrainCommand,
    job: Job,
    steps: dict[str, Subject[Prepared]],
    device: torch.device,
    ceilings: Ceilings | None,
    console: Console,
) -> list[Row]:
    if not steps:
        return []
    turns = {variant: partial(step.ask, _turn) for variant, step in steps.items()}
    timings = in_turns(turns, seconds=command.seconds)
    if command.profile:
        _profile(command, job, steps, console)
    rows, commit = [], command.commit or git_state()[0]
    for variant, step in steps.items():
        peak, saved, flops, moved = step.ask(_facts)
        median = timings[variant].median
        floor = ceilings and ceilings.floor(flops, moved)
        rows.append(
            Row(
                network=job.network,
                variant=variant,
                mode=job.mode,
                batch=job.batch,
                width=job.width,
                step_ms=1e3 * median,
                images_per_s=job.batch / median,
                peak_bytes=peak,
                saved_bytes=saved,
                flops=flops,
                floor_ms=1e3 * floor if floor else None,
                hardware=hardware(device),
                torch=str(torch.__version__),
                commit=commit,
            )
        )
    return rows


def _turn(prepared: Prepared) -> Pairs:
    cycle = prepared.step.cycle
    return [(seconds / cycle, worked / cycle) for seconds, worked in turn(prepared.step)]


def _facts(prepared: Prepared) -> tuple[int | None, int, int, int]:
    return prepared.peak_bytes, prepared.saved_bytes, prepared.flops, prepared.moved_bytes


def _kernels(prepared: Prepared) -> dict[str, tuple[float, float]]:
    cycle, found = prepared.step.cycle, profile(prepared.step)
    return {kind: (count / cycle, time / cycle) for kind, (count, time) in found.items()}


def _profile(
    command: BenchTrainCommand, job: Job, steps: dict[str, Subject[Prepared]], console: Console
) -> None:
    """Print what the kernels of every step take, and store it."""
    shares = [
        Share(job.network, variant, job.mode, kind, count, time)
        for variant, step in steps.items()
        for kind, (count, time) in step.ask(_kernels).items()
    ]
    print_table(
        console,
        [share.as_dict() for share in shares if share.kernels],
        title=f"microseconds per step, batch {job.batch}, width {job.width}",
    )
    if command.results is not None and job.own:
        with (command.results / "profile.jsonl").open("a") as file:
            file.writelines(json.dumps(share.as_dict()) + "\n" for share in shares)


def _show(rows: list[Row], console: Console) -> None:
    for name in dict.fromkeys(row.network for row in rows):
        own = [row for row in rows if row.network == name]
        print_table(
            console,
            [speed_table.line(row, own) for row in own],
            title=f"{name}: one training step on {own[0].hardware}",
        )
