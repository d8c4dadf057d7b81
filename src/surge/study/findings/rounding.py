"""What rounding alone does to a test, made from ``results/rounding.jsonl``."""

from pathlib import Path
from statistics import fmean

from surge.files import json_lines
from surge.study.statistics import estimate
from surge.study.stored_runs import without_surge
from surge.study.tables import spread_cell


def section(folder: Path) -> str:
    """Return one row per run that ``benchmarks/rounding.py`` tested, and one per pair of them."""
    newest = {row["recipe"]: row for row in json_lines(folder / "rounding.jsonl")}
    draws = max((len(row["draws"]) for row in newest.values()), default=0)
    drawn = f"{draws} draws of last bits"
    lines = [
        f"| run | fp32 | bf16 | {drawn} | other class in bf16 | in the draws |",
        f"| --- |{' ---: |' * 5}",
    ]
    for name, row in newest.items():
        exact, short = (f"{row[key]:.2f}" for key in ("fp32", "bf16"))
        other = f"{row['other_bf16']:.1f} % | {fmean(row['other_draws']):.1f} %"
        lines.append(
            f"| {name} | {exact} | {short} | {spread_cell(estimate(row['draws']))} | {other} |"
        )
    for name, row in newest.items():
        base = newest.get(without_surge(name) or "")
        if base is not None:
            less = [f"{row[key] - base[key]:+.2f}" for key in ("fp32", "bf16")]
            less.append(f"{fmean(row['draws']) - fmean(base['draws']):+.2f}")
            lines.append(f"| {name} minus plain | {' | '.join(less)} | | |")
    return "\n".join(lines) + "\n"
