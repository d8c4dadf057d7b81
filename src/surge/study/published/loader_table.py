"""Loaders against the GPU's appetite, from ``results/loader.jsonl`` and ``training.jsonl``."""

from pathlib import Path
from typing import Any

from surge.files import json_lines
from surge.study.bench import speed_table

HUNGRY = {"plain": "ReActNet", "surge": "SURGE"}
"""Variants of the step that eats."""
NETWORK = "reactnet-224"


def read(folder: Path) -> list[dict[str, Any]]:
    """Return the stored measurements; the newest of a kind counts."""
    rows = json_lines(folder / "loader.jsonl")
    kept = {(r["what"], r["table"], r["size"], r["workers"], r["hardware"]): r for r in rows}
    return list(kept.values())


def appetite(folder: Path) -> dict[str, float]:
    """Return the images a second of the captured steps that are stored, by variant."""
    wanted = (NETWORK, "captured", 256, 1)
    kinds = ((s, (s.network, s.mode, s.batch, s.width)) for s in speed_table.read(folder))
    steps = [step for step, kind in kinds if kind == wanted]
    return {step.variant: step.images_per_s for step in steps if step.variant in HUNGRY}


def section(folder: Path) -> str:
    """Return what every loader gives, and the share of what a step eats."""
    rows, eaten = read(folder), appetite(folder)
    if not rows:
        return "No loader is measured yet: the table is open.\n"
    lines = [
        f"| images | workers | images/s |{''.join(f' / {n} |' for n in HUNGRY.values())}",
        f"| --- | ---: | ---: |{' ---: |' * len(HUNGRY)}",
    ]
    for row in rows:
        found = float(row["images_per_s"])
        shares = [f"{found / eaten[v]:.2f}" if v in eaten else "open" for v in HUNGRY]
        cells = [row["what"], str(row["workers"] or "-"), f"{found:,.0f}", *shares]
        lines.append(f"| {' | '.join(cells)} |")
    used = sorted({str(row["hardware"]) for row in rows})
    kinds = sorted({f"{row['table']}, {row['size']} px crops" for row in rows})
    fed = [f"{name} eats {eaten[v]:,.0f}" for v, name in HUNGRY.items() if v in eaten]
    facts = f"{'; '.join(kinds)}; {', '.join(used)}. "
    facts += f"Captured steps of 256: {', '.join(fed)} images a second." if fed else "Steps: open."
    return "\n".join(lines) + f"\n\n{facts}\n"
