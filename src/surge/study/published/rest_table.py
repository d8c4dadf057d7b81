"""The published cost of smaller files, made from ``results/rest.jsonl``."""

from pathlib import Path

from surge.files import json_lines


def section(folder: Path) -> str:
    """Return one row per packed file that ``benchmarks/rest.py`` measured."""
    lines = ["| network | file | bytes | top-1 | same class as the first |"]
    lines.append("| --- | --- | ---: | ---: | ---: |")
    newest = {(row["recipe"], row["file"]): row for row in json_lines(folder / "rest.jsonl")}
    for row in newest.values():
        cells = (row["recipe"], row["file"], f"{row['bytes']:,}", f"{row['top1']:.2f}")
        lines.append(f"| {' | '.join(cells)} | {row['same']:.1f} % |")
    return "\n".join(lines) + "\n"
