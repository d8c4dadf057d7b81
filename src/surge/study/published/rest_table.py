"""The published cost of smaller files, made from ``results/rest.jsonl``."""

import json
from pathlib import Path


def section(folder: Path) -> str:
    """Return one row per packed file that ``benchmarks/rest.py`` measured."""
    path = folder / "rest.jsonl"
    lines = ["| network | file | bytes | top-1 | same class as the first |"]
    lines.append("| --- | --- | ---: | ---: | ---: |")
    stored = path.read_text().splitlines() if path.exists() else []
    newest = {(row["recipe"], row["file"]): row for row in map(json.loads, stored)}
    for row in newest.values():
        cells = (row["recipe"], row["file"], f"{row['bytes']:,}", f"{row['top1']:.2f}")
        lines.append(f"| {' | '.join(cells)} | {row['same']:.1f} % |")
    return "\n".join(lines) + "\n"
