"""Tables of training steps: what the command prints, and what is published from ``results/``."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from surge.files import json_lines
from surge.study.bench.speed_sweeps import compared, own_kind, table
from surge.study.bench.training_networks import NETWORKS
from surge.study.bench.training_speed import Row

PAPER_FORM = ("literal", "eager")
PICTURE = Path("images/step-cost.png")
"""Cost against batch and width, beside the page that shows it."""


def everything(folder: Path) -> list[Row]:
    """Return all stored steps, the newest last."""
    return [Row(**line) for line in json_lines(folder / "training.jsonl")]


def newest(rows: Sequence[Row]) -> list[Row]:
    """Return the newest step of every kind."""
    return list({_kind(row): row for row in rows}.values())


def read(folder: Path) -> list[Row]:
    """Return the stored steps; the newest of a kind counts."""
    return newest(everything(folder))


def partner(
    row: Row, rows: Sequence[Row], variant: str, mode: str, network: str | None = None
) -> Row | None:
    """Return the newest step of another kind that was measured with the same code, if any.

    And on the same hardware, with the same torch.
    """
    wanted = replace(row, variant=variant, mode=mode, network=network or row.network)
    alike = (r for r in reversed(rows) if _kind(r) == _kind(wanted) and _place(r) == _place(wanted))
    return next(alike, None)


def pair(
    row: Row, rows: Sequence[Row], variant: str, mode: str, network: str | None = None
) -> tuple[Row, Row] | None:
    """Return the newest step of this kind and one of another kind, measured with the same code."""
    for own in (r for r in reversed(rows) if _kind(r) == _kind(row)):
        other = partner(own, rows, variant, mode, network)
        if other is not None:
            return own, other
    return None


def _kind(row: Row) -> tuple[str, str, str, int, int]:
    return row.network, row.variant, row.mode, row.batch, row.width


def _place(row: Row) -> tuple[str | None, str, str]:
    return row.commit, row.hardware, row.torch


def line(row: Row, rows: Sequence[Row]) -> dict[str, str]:
    """Return the cells of a step, beside the plain step and the paper's form among ``rows``.

    Only steps of one version of the code are compared, the newest that has both: others were
    measured another time.
    """
    plain = pair(row, rows, "plain", row.mode)
    literal = pair(row, rows, *PAPER_FORM)

    def ratio(found: tuple[Row, Row] | None, field: str) -> float | None:
        own, other = (getattr(r, field) for r in found) if found else (None, None)
        return own / other if own and other else None

    def cell(value: float | None, digits: int = 3) -> str:
        return "-" if value is None else f"{value:.{digits}f}"

    slower = ratio(literal, "step_ms")

    return {
        "variant": row.variant,
        "mode": row.mode,
        "batch": str(row.batch),
        "width": str(row.width),
        "ms": f"{row.step_ms:.2f}",
        "images/s": f"{row.images_per_s:,.0f}",
        "time / plain": cell(ratio(plain, "step_ms")),
        "literal / this": cell(1 / slower if slower else None, 2),
        "peak MB": "-" if row.peak_bytes is None else f"{row.peak_bytes / 1e6:,.0f}",
        "memory / plain": cell(ratio(plain, "peak_bytes")),
        "saved MB": f"{row.saved_bytes / 1e6:,.0f}",
        "GFLOP": f"{row.flops / 1e9:,.0f}",
        "floor ms": cell(row.floor_ms, 2),
    }


def over_plain(
    rows: Sequence[Row], network: str, field: str = "step_ms"
) -> dict[tuple[str, str], float]:
    """Return (variant, mode) of a network: its time over the plain step's in that mode.

    With another field, that in the place of the time.
    """
    known = [row for row in rows if getattr(row, field)]
    found = [row for row in newest(own_kind(known, network)) if row.variant != "plain"]
    pairs = {(row.variant, row.mode): pair(row, known, "plain", row.mode) for row in found}
    return {
        kind: getattr(held[0], field) / getattr(held[1], field)
        for kind, held in pairs.items()
        if held
    }


def section(folder: Path) -> str:
    """Return the stored steps of every network, at its own batch and width."""
    stored = everything(folder)
    if not stored:
        return "Nothing is stored yet.\n"
    parts = []
    for name in NETWORKS:
        lines = [line(row, stored) for row in newest(own_kind(stored, name))]
        if not lines:
            continue
        # A page is narrow.
        columns = [c for c in lines[0] if c not in ("batch", "width", "saved MB")]
        parts += [f"**{name}, batch {lines[0]['batch']}**\n", f"| {' | '.join(columns)} |"]
        parts += [f"| --- | --- |{' ---: |' * (len(columns) - 2)}"]
        parts += [f"| {' | '.join(cells[c] for c in columns)} |" for cells in lines]
        parts.append("")
    used = {
        n: ", ".join(sorted({str(getattr(r, n)) for r in stored})) for n in ("hardware", "torch")
    }
    parts.append(f"One {used['hardware']}, torch {used['torch']}, bf16 autocast.")
    return "\n".join(parts) + "\n"


def sweeps_section(folder: Path) -> str:
    """Return what is stored at several batches or widths: a table each, and their picture."""
    found = compared(everything(folder))
    if not found:
        return "Nothing is stored yet.\n"
    parts = []
    for sweep in found:
        title = f"**{sweep.network} against the {sweep.by}, {sweep.rows[0].mode}, {sweep.fixed}**"
        parts += [f"{title}\n", table(sweep)]
    return "\n".join([*parts, f"![Milliseconds of a step by batch and width]({PICTURE})\n"])
