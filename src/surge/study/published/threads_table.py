"""The published cost of a second thread, made from ``results/threads.jsonl``."""

from pathlib import Path

from surge.files import json_lines


def section(folder: Path) -> str:
    """Return one row per network and place that ``runtime/benchmarks/figures.py`` timed."""
    newest: dict[tuple[str, str], dict[int, float]] = {}
    for row in json_lines(folder / "threads.jsonl"):
        newest.setdefault((row["network"], row["where"]), {})[row["threads"]] = row["median_ms"]
    lines = ["| network | two cores | 1 thread, ms | 2 threads, ms | 2 over 1 |"]
    lines.append("| --- | --- | ---: | ---: | ---: |")
    for (network, where), times in newest.items():
        cells = f"{times[1]:.2f} | {times[2]:.2f} | {times[2] / times[1]:.2f}"
        lines.append(f"| {network} | {where} | {cells} |")
    return "\n".join(lines) + "\n"
