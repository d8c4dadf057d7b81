"""The paper's table of costs, measured here: step time, peak memory, accuracy after ten epochs.

Steps come from ``results/training.jsonl`` (``surge bench train``), accuracies from
``results/imagenette.jsonl`` (``benchmarks/imagenette_cost.py``). SURGE is ReActNet's layer and
network with RBONN's schedule, which is how the paper's text reads; so the plain step that its own
is to be held against is ReActNet's.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from surge.study import results, speed_table
from surge.study.training_speed import Row

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
    steps = [step for step in speed_table.read(folder) if (step.batch, step.width) == (BATCH, 1)]
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
    """Return a number and its share of ReActNet's."""
    if row.form and mode == "captured":
        return ["-", "-"]
    value, plain = (
        _value(steps, network, variant, mode, field)
        for network, variant in ((row.network, row.variant), (PLAIN, "plain"))
    )
    if value is None:
        return ["open", "open"]
    return [f"{value / size:,.{digits}f}", f"{value / plain:.2f}" if plain else "open"]


def _value(steps: Sequence[Row], network: str, variant: str, mode: str, field: str) -> float | None:
    for step in steps:
        if (step.network, step.variant, step.mode) == (network, variant, mode):
            found: float | None = getattr(step, field)
            return found
    return None


def _compared(steps: Sequence[Row]) -> str:
    """Say what SURGE costs beside every other row, as the paper does."""
    wanted = [("Bi-Real", "resnet18-224"), ("ReActNet", PLAIN), ("RBONN", "rbonn-224")]
    said = []
    for field, what in (("step_ms", "time"), ("peak_bytes", "memory")):
        ours = _value(steps, PLAIN, "surge", "captured", field)
        others = [(name, _value(steps, of, "plain", "captured", field)) for name, of in wanted]
        shares = [f"{ours / other:.2f} {name}" for name, other in others if ours and other]
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
