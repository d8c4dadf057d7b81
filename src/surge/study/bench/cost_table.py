"""The paper's table of costs, measured here: step time, peak memory, accuracy after ten epochs.

Steps come from ``results/training.jsonl`` (``surge bench train``), accuracies from
``results/imagenette.jsonl`` (``benchmarks/imagenette_cost.py``). SURGE is ReActNet's layer and
network with RBONN's schedule, which is how the paper's text reads; so the plain step that its own
is to be held against is ReActNet's.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from surge.study import results
from surge.study.bench import speed_table
from surge.study.bench.training_speed import Row

BATCH = 256
CHANGES = {"epochs": 10, "size": 224, "batch": BATCH}
"""What differs from the recipes of Imagenette."""
DATA = f"imagenette, test set, {CHANGES['size']} px"
PLAIN = "reactnet-224"


@dataclass(frozen=True)
class CostRow:
    """A row: which step and which run belong to it."""

    name: str
    network: str
    variant: str
    row: str
    form: str = ""
    """``literal`` for SURGE as the paper prints it."""


ROWS = (
    CostRow("Bi-Real", "resnet18-224", "plain", "onestage-bireal"),
    CostRow("ReActNet", PLAIN, "plain", "onestage-reactnet"),
    CostRow("RBONN", "rbonn-224", "plain", "onestage-rbonn"),
    CostRow("SURGE", PLAIN, "surge", "onestage-reactnet-surge"),
    CostRow("SURGE* (1x1)", PLAIN, "1x1", "onestage-reactnet-surge-1x1"),
    CostRow("SURGE, literal", PLAIN, "literal", "onestage-reactnet-surge", "literal"),
)
MODES = ("captured", "eager")


def accuracies(folder: Path) -> dict[tuple[str, str], dict[int, float]]:
    """Return (row, form): the accuracy of the last epoch by seed."""
    found: dict[tuple[str, str], dict[int, float]] = {}
    for result in results.read(folder, "imagenette"):
        form = result.overrides.get("form", "")
        changed = {key: v for key, v in result.overrides.items() if key != "form"}
        if (changed, result.data, result.metric) == (CHANGES, DATA, "top1"):
            found.setdefault((result.row, form), {})[result.seed] = result.last
    return found


def section(folder: Path) -> str:
    """Return the table; cells without a measurement say *open*."""
    stored = speed_table.everything(folder)
    steps = [step for step in stored if (step.batch, step.width) == (BATCH, 1)]
    known = accuracies(folder)
    lines = [
        "| row | captured, ms | / ReActNet | eager, ms | / ReActNet | captured, peak MB | "
        "/ ReActNet | eager, peak MB | / ReActNet | top-1 |",
        f"| --- |{' ---: |' * 9}",
    ]
    for row in ROWS:
        cells = [row.name]
        for field, size, digits in (("step_ms", 1.0, 2), ("peak_bytes", 1e6, 0)):
            for mode in MODES:
                cells += _pair(steps, row, mode, field, size, digits)
        top = known.get((row.row, row.form), {})
        cells.append(f"{sum(top.values()) / len(top):.2f}" if top else "open")
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines) + f"\n\n{_compared(steps)}{_facts(steps, known)}"


def _pair(
    steps: Sequence[Row], row: CostRow, mode: str, field: str, size: float, digits: int
) -> list[str]:
    """Return a number and its share of ReActNet's, as far as both were timed with one version."""
    if row.form and mode == "captured":
        return ["-", "-"]
    known = [step for step in steps if getattr(step, field)]
    mine = [step for step in known if _is(step, row.network, row.variant, mode)]
    if not mine:
        return ["open", "open"]
    found = speed_table.pair(mine[-1], known, "plain", mode, PLAIN)
    if found is None:
        return [f"{getattr(mine[-1], field) / size:,.{digits}f}", "-"]
    value, plain = (getattr(step, field) for step in found)
    return [f"{value / size:,.{digits}f}", f"{value / plain:.2f}"]


def _is(step: Row, network: str, variant: str, mode: str) -> bool:
    return (step.network, step.variant, step.mode) == (network, variant, mode)


def _compared(steps: Sequence[Row]) -> str:
    """Say what the newest SURGE costs beside every other row of its version, as the paper does."""
    wanted = [("Bi-Real", "resnet18-224"), ("ReActNet", PLAIN), ("RBONN", "rbonn-224")]
    said = []
    for field, what in (("step_ms", "time"), ("peak_bytes", "memory")):
        known = [step for step in steps if getattr(step, field)]
        ours = [step for step in known if _is(step, PLAIN, "surge", "captured")][-1:]
        pairs = [
            (step, speed_table.partner(step, known, "plain", "captured", network), name)
            for step in ours
            for name, network in wanted
        ]
        shares = [
            f"{getattr(step, field) / getattr(other, field):.2f} {name}"
            for step, other, name in pairs
            if other is not None
        ]
        if shares:
            said.append(f"{what} {', '.join(shares)}")
    return f"A captured step with SURGE, in times that of: {'; '.join(said)}.\n" if said else ""


def _facts(steps: Sequence[Row], known: dict[tuple[str, str], dict[int, float]]) -> str:
    mine = [step for step in steps if step.network in {row.network for row in ROWS}]
    if not mine:
        return "No step is stored yet.\n"
    used = ", ".join(sorted({step.hardware for step in mine}))
    versions = ", ".join(sorted({step.torch for step in mine}))
    seeds = ", ".join(str(seed) for seed in sorted({s for top in known.values() for s in top}))
    return (
        f"One {used}, torch {versions}, bf16 autocast; seeds of the accuracies: "
        f"{seeds or 'none yet'}. *open*: not measured yet.\n"
    )
