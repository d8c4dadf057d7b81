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
    found = _values(steps, row.network, row.variant, mode, field)
    if not found:
        return ["open", "open"]
    plain = _values(steps, PLAIN, "plain", mode, field)
    both = [commit for commit in found if commit in plain]
    commit = both[-1] if both else list(found)[-1]
    value = found[commit]
    return [f"{value / size:,.{digits}f}", f"{value / plain[commit]:.2f}" if both else "-"]


def _values(
    steps: Sequence[Row], network: str, variant: str, mode: str, field: str
) -> dict[str | None, float]:
    """Return commit: what was measured with it, the newest last."""
    found: dict[str | None, float] = {}
    for step in steps:
        value: float | None = getattr(step, field)
        if (step.network, step.variant, step.mode) == (network, variant, mode) and value:
            found.pop(step.commit, None)
            found[step.commit] = value
    return found


def _compared(steps: Sequence[Row]) -> str:
    """Say what the newest SURGE costs beside every other row of its version, as the paper does."""
    wanted = [("Bi-Real", "resnet18-224"), ("ReActNet", PLAIN), ("RBONN", "rbonn-224")]
    said = []
    for field, what in (("step_ms", "time"), ("peak_bytes", "memory")):
        ours = _values(steps, PLAIN, "surge", "captured", field)
        if not ours:
            continue
        commit, value = list(ours.items())[-1]
        others = [
            (n, _values(steps, of, "plain", "captured", field).get(commit)) for n, of in wanted
        ]
        shares = [f"{value / other:.2f} {name}" for name, other in others if other]
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
