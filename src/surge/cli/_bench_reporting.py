"""What ``surge bench infer`` says about one network."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console

from surge.cli.console import print_table, say
from surge.layers.hooks import binary_layers
from surge.study import figures
from surge.study.bench import latency, latency_figures
from surge.study.bench.latency import Row, Step
from surge.study.bench.workloads import Workload

if TYPE_CHECKING:
    from surge.cli.bench import BenchInferCommand


@dataclass(frozen=True)
class Found:
    """One network, measured."""

    rows: list[Row]
    steps: list[Step]
    failures: dict[str, str]


def report(
    title: str, found: Found, work: Workload | None, command: BenchInferCommand, console: Console
) -> None:
    """Print a network's table, profile and sentences, and draw its picture."""
    first = found.rows[0]
    facts = f"{first.threads} thread{'s' * (first.threads > 1)}, batch {first.batch}"
    print_table(
        console, latency.shown(found.rows), title=f"{title}, {facts}", columns=latency.COLUMNS
    )
    if found.steps:
        whole = sum(step.micros for step in found.steps)
        parts = ", ".join(
            f"{kind} {100 * micros / whole:.0f} %"
            for kind, micros in latency.by_kind(found.steps).items()
        )
        rows = [
            {
                "step": s.name,
                "kind": s.kind,
                "µs": f"{s.micros:.1f}",
                "%": f"{100 * s.micros / whole:.1f}",
            }
            for s in found.steps
        ]
        say(console, f"The packed network, step by step: {parts}")
        print_table(console, rows)
    for engine, failure in found.failures.items():
        console.print(f"{engine} cannot run here: {failure}", style="yellow", markup=False)
    widths = (
        [] if work is None else [la.geometry.in_features for _, la in binary_layers(work.binary)]
    )
    for sentence in latency.remarks(found.rows, found.steps, widths):
        say(console, sentence)
    figure = latency_figures.draw(found.rows, found.steps, f"{title}, {facts}")
    numbers: list[figures.Row] = [vars(row) for row in found.rows]
    numbers += [{"step": s.name, "kind": s.kind, "micros": s.micros} for s in found.steps]
    path = command.out / f"{Path(title).stem}-{first.threads}t-b{first.batch}.png"
    for written in figures.save(figure, numbers, path):
        say(console, f"wrote {written}")
