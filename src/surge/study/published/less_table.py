"""What doing less saves of a training step, and what it costs in accuracy."""

from pathlib import Path

from surge.recipes import get_recipe
from surge.recipes.variants import row_with
from surge.study import results
from surge.study.bench import speed_table
from surge.study.tables import interval_cell, make_rows

VARIANTS = ("", "tied", "1x1", "lowrank", "frozen", "fourth", "half", "salient")
"""SURGE as the paper has it, then what does less."""
TIMED = ("resnet20", "resnet18-224", "bert-base")
TRAINED = "digits-cnn-recu"


def section(folder: Path) -> str:
    """Return one row per variant: times over a plain captured step, accuracy minus plain."""
    stored = results.read(folder, TRAINED.partition("-")[0])
    steps = speed_table.everything(folder)
    ratios = [speed_table.over_plain(steps, network) for network in TIMED]
    head = ["variant", *(f"{name}, time / plain" for name in TIMED), "digits, minus plain, 95 %"]
    lines = [f"| {' | '.join(head)} |", f"| --- |{' ---: |' * (len(head) - 1)}"]
    for variant in VARIANTS:
        name = variant or "surge"
        found = [ratio.get((name, "captured")) for ratio in ratios]
        times = ["-" if value is None else f"{value:.3f}" for value in found]
        recipe = get_recipe(row_with(TRAINED, variant))
        (row,) = make_rows([recipe], stored)
        cells = (name, *times, interval_cell(row.difference, row.row))
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"
