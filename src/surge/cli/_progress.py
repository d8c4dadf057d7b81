"""What is shown of a run: a line per epoch, TensorBoard's scalars, and how it ended."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from shlex import quote
from statistics import fmean
from typing import TYPE_CHECKING, Any

from surge.cli.console import say
from surge.study import results

if TYPE_CHECKING:
    from rich.console import Console

    from surge.recipes.recipe import Recipe
    from surge.train.options import Outcome
    from surge.train.run import RunFolder

HITS = ("train_top1", "train_accuracy")
"""Names of the share of right answers in training; a detector counts none."""
PATIENCE = 20.0
"""Seconds without a line, after which one says how far an epoch is."""


def _rate(rate: float) -> str:
    return f"{rate:7.4f}" if rate >= 1e-3 or not rate else f"{rate:7.1e}"


def _cells(row: Mapping[str, Any], left: float, metric: str) -> dict[str, str]:
    """Return what a line says by the heading of its column; 80 columns in all."""
    hits = next((row[key] for key in HITS if key in row), None)
    tested = row.get(f"test_{metric}")
    cells = {
        "epoch": f"{row['epoch'] + 1:5d}",
        "time": f"{row['seconds']:7.2f}s",
        "left": f"{left:5.0f}s",
        "lr": _rate(row["lr"]),
        "loss": f"{row['train_loss']:6.3f}",
        "train": f"{'-' if hits is None else f'{hits:.2f}':>6}",
        "test": f"{'-' if tested is None else f'{tested:.2f}':>6}",
        "flips%": f"{row['flips']:6.3f}",
    }
    if "scale" in row:
        cells["scale"] = f"{row['scale']:6.4f}"
    if "injected" in row:
        cells["dose%"] = f"{100 * row['injected']:6.3f}"
    if "delivered" in row:
        cells["arrives%"] = f"{100 * row['delivered']:8.3f}"
    return cells


def epoch_lines(
    console: Console, epochs: int, metric: str = "top1", label: str = ""
) -> Callable[[dict[str, Any]], str]:
    """Return a function that prints one fixed-width line per epoch, at most one a second.

    Above the first one, and above the first with another column, are the headings.
    """
    begun, printed, done = time.monotonic(), 0.0, 0
    headed: set[str] = set()

    def show(row: dict[str, Any]) -> str:
        nonlocal printed, done
        now = time.monotonic()
        done += 1
        cells = _cells(row, (now - begun) / done * (epochs - row["epoch"] - 1), metric)
        if not cells.keys() <= headed:
            headed.update(cells)
            header = " ".join(name.rjust(len(cell)) for name, cell in cells.items())
            console.print(header, style="dim", soft_wrap=True)
        line = " ".join(cells.values())
        if now - printed >= 1 or row["epoch"] + 1 == epochs:
            printed = now
            say(console, f"{line}  {label}".rstrip())
        return line

    return show


def step_lines(console: Console, label: str = "") -> Callable[[int, int], None]:
    """Return a function that says how far an epoch is, where epochs take long."""
    begun = said = time.monotonic()
    first = last = 0

    def show(done: int, total: int) -> None:
        nonlocal begun, said, first, last
        now = time.monotonic()
        if done <= last or not last:  # another epoch, or the middle of one that was left
            begun = said = now
            first = done
        last = done
        if now - said >= PATIENCE and done < total:
            said = now
            left = (now - begun) / (done - first) * (total - done)
            line = f"      step {done} of {total}, {left:.0f}s left in this epoch  {label}"
            say(console, line.rstrip(), style="dim")

    return show


def conclude(
    folder: RunFolder,
    recipe: Recipe,
    outcome: Outcome,
    environment: dict[str, Any],
    where: Path,
    console: Console,
) -> results.Result | None:
    """Say how the run ended; store it, and return what was stored, if it is finished."""
    seed = int(environment["seed"])
    if not outcome.finished:
        say(
            console,
            f"Stopped after epoch {outcome.epochs} of {recipe.train.epochs}. Continue with: "
            f"surge train --resume {quote(str(folder.path))}",
        )
        return None
    overrides = environment.get("overrides", {})
    dose = mean_delivered(folder.metrics())
    result = results.make_result(recipe, overrides, seed, outcome, environment, dose)
    # The metric that decides comes last: where it is stored, nothing is missing.
    for metric, (last, best) in outcome.others.items():
        other = replace(result, metric=metric, last=round(last, 4), best=round(best, 4))
        results.append(where, other)
    stored = results.append(where, result)
    shared = result.side_by_side
    text = (
        f"{recipe.name} seed {seed}: {recipe.metric} {outcome.last:.2f} (last epoch), "
        f"{outcome.best:.2f} (best, epoch {outcome.best_epoch + 1}), {outcome.seconds:.1f} s"
        f"{f' ({shared} runs at once)' if shared > 1 else ''}, steps {outcome.mode}"
    )
    folder.write("summary.txt", text + "\n")
    say(console, text, style="bold")
    path = quote(str(folder.path))
    ways = f"evaluate with: surge evaluate {path}"
    if recipe.method is not None and recipe.data.name != "voc":
        ways += f"; pack with: surge export {path}"
    say(console, f"stored in {stored}; {ways}")
    return result


def mean_delivered(rows: Sequence[dict[str, Any]]) -> float | None:
    """Return the mean delivered dose of a run over the epochs that measured it, if any did."""
    found = [row["delivered"] for row in rows if "delivered" in row]
    return round(fmean(found), 6) if found else None


def tensorboard_sink(folder: RunFolder) -> Callable[[dict[str, Any]], None]:
    """Return a function that writes every number of an epoch as a TensorBoard scalar."""
    from surge.errors import MissingDependencyError

    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError as error:
        raise MissingDependencyError(
            "TensorBoard is not installed: pip install 'surge-bnn[tracking]'"
        ) from error
    writer: SummaryWriter | None = None

    def write(row: dict[str, Any]) -> None:
        nonlocal writer
        if writer is None:  # epochs after the checkpoint of a killed run are shown once
            writer = SummaryWriter(str(folder.path / "tensorboard"), purge_step=row["epoch"])
        for key, value in row.items():
            if key != "epoch":
                writer.add_scalar(key, value, row["epoch"])
        writer.flush()

    return write
