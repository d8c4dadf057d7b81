"""Published tables about binary BERTs: costs of SURGE, its alignment loss, the engine's answers."""

import json
from pathlib import Path
from typing import Any

from surge.recipes import get_recipe
from surge.study import results


def overhead_section(folder: Path) -> str:
    """Return one row per task and arm that ``benchmarks/glue.py`` measured, the newest of each."""
    lines = {line["row"]: line for line in _lines(folder / "glue_overhead.jsonl")}
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
    lines = {line["recipe"]: line for line in _lines(folder / "packed_bert.jsonl")}
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


def _lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(text) for text in path.read_text().splitlines()] if path.exists() else []


def _table(head: tuple[str, ...], rows: list[tuple[Any, ...]], *, words: int) -> str:
    """Return a table whose first columns are words and whose others are numbers."""
    lines = [head, ("---",) * words + ("---:",) * (len(head) - words), *rows]
    return "".join(f"| {' | '.join(str(cell) for cell in line)} |\n" for line in lines)
