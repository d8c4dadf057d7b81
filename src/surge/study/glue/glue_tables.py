"""Tables about binary BERTs: all metrics, averages, costs, the alignment loss, the engine."""

from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

from surge.data.glue import TASKS
from surge.data.glue_metrics import COLUMNS, averages
from surge.files import json_lines
from surge.recipes import get_recipe
from surge.study import results
from surge.study.results import Result
from surge.study.statistics import estimate
from surge.study.tables import spread_cell


def overheads(folder: Path) -> dict[str, dict[str, Any]]:
    """Return the newest line of every row that ``benchmarks/glue.py`` measured."""
    return {line["row"]: line for line in json_lines(folder / "glue_overhead.jsonl")}


def overhead_section(folder: Path) -> str:
    """Return one row per task and arm that was measured."""
    lines = overheads(folder)
    if not lines:
        return "Nothing is stored yet.\n"
    tasks = list(dict.fromkeys(line["task"] for line in lines.values()))
    head = ("row", "length", "batch", "step, ms", "epoch, s", "time / BiT", "MiB", "memory / BiT")
    rows = [
        (
            line["row"],
            line["length"],
            line["batch"],
            f"{line['step_ms']:.2f}",
            f"{line['epoch_seconds']:.1f}",
            f"{line['time_ratio']:.3f}",
            f"{line['peak_mib']:,.0f}",
            "-" if line["memory_ratio"] is None else f"{line['memory_ratio']:.3f}",
        )
        for line in sorted(lines.values(), key=lambda line: tasks.index(line["task"]))
    ]
    one = next(iter(lines.values()))
    facts = f"{one['model']}, {one['precision']}, {one['hardware']}, torch {one['torch']}.\n"
    return f"{_table(head, rows, words=1)}\n{facts}"


def metrics_section(stored: Sequence[Result]) -> str:
    """Return one row per stored row and metric that does not decide; empty without any."""
    found: dict[tuple[str, str, str, int, str], dict[int, Result]] = defaultdict(dict)
    for r in stored:
        if r.metric != _deciding(r):
            name = f"{r.row} ({r.setting})" if r.setting else r.row
            found[name, r.metric, r.data, r.epochs, r.precision][r.seed] = r  # the newest counts
    head = ("row", "metric", "data", "epochs", "last epoch", "best epoch", "n")
    rows = [
        (
            *(name, metric, data, epochs),
            *(spread_cell(estimate([getattr(r, key) for r in runs.values()])) for key in ENDS),
            len(runs),
        )
        for (name, metric, data, epochs, _), runs in found.items()
    ]
    return _table(head, rows, words=3) if rows else ""


def averages_section(stored: Sequence[Result]) -> str:
    """Return both averages of every method whose nine columns are stored; empty without any.

    A column is the mean over its seeds. Runs with another number of epochs stand apart.
    """
    groups: dict[tuple[Any, ...], dict[str, dict[int, Result]]] = {}
    for r in stored:
        task, _, method = r.row.partition("-")
        column = {_deciding(r): task, "accuracy-mm": "mnli-mm"}.get(r.metric)
        if column is not None:
            network, own = r.data.partition(", ")[2], r.overrides.get("epochs", "own")
            group = groups.setdefault((method, network, own, r.setting), {})
            group.setdefault(column, {})[r.seed] = r
    rows = []
    for (method, network, epochs, setting), columns in groups.items():
        if columns.keys() >= set(COLUMNS):
            cells = (_averages(columns, key) for key in ENDS)
            name = f"{method} ({setting})" if setting else method
            seeds = min(map(len, columns.values()))
            rows.append(
                (name, network, epochs, *(f"{x:.2f}" for pair in cells for x in pair), seeds)
            )
    head = ("average", "data", "epochs", "9 columns, last", "8 tasks, last")
    return _table((*head, "9 columns, best", "8 tasks, best", "n"), rows, words=2) if rows else ""


ENDS = ("last", "best")


def _averages(columns: dict[str, dict[int, Result]], key: str) -> tuple[float, float]:
    means = {name: fmean(getattr(r, key) for r in runs.values()) for name, runs in columns.items()}
    return averages(means)


def _deciding(result: Result) -> str:
    return TASKS[result.row.partition("-")[0]].metrics[0]


def align_section(folder: Path) -> str:
    """Return one row per task and weight of the alignment loss, on held-out sentences."""
    found = {
        (r.row, r.overrides["align"], r.seed): r  # the newest counts
        for r in results.read(folder, "glue")
        if "align" in r.overrides
        and "held out" in r.data
        and r.metric == get_recipe(r.recipe).metric
    }
    if not found:
        return "Nothing is stored yet.\n"
    head = ("row", "weight", "seed", "epochs", "metric", "last", "best")
    rows = [
        (row, f"{weight:g}", seed, r.epochs, r.metric, f"{r.last:.2f}", f"{r.best:.2f}")
        for (row, weight, seed), r in sorted(found.items())
    ]
    return _table(head, rows, words=1)


def packed_section(folder: Path) -> str:
    """Return one row per trained network that ``benchmarks/packed_bert.py`` measured."""
    lines = {line["recipe"]: line for line in json_lines(folder / "packed_bert.jsonl")}
    if not lines:
        return "Nothing is stored yet.\n"
    head = ("row", "sentences", "same class", "same logits", "torch", "engine", "bytes")
    rows = [
        (
            line["recipe"].removeprefix("glue-"),
            line["sentences"],
            f"{line['same_class']:.2f} %",
            f"{line['same_logits']:.2f} %",
            f"{line['torch_accuracy']:.2f}",
            f"{line['engine_accuracy']:.2f}",
            f"{line['bytes']:,}",
        )
        for line in lines.values()
    ]
    return _table(head, rows, words=1)


def _table(head: tuple[str, ...], rows: list[tuple[Any, ...]], *, words: int) -> str:
    """Return a table whose first columns are words and whose others are numbers."""
    lines = [head, ("---",) * words + ("---:",) * (len(head) - words), *rows]
    return "".join(f"| {' | '.join(str(cell) for cell in line)} |\n" for line in lines)
