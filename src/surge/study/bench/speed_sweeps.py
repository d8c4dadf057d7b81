"""How the cost of a step grows: the same steps at several batches, or at several widths."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal, get_args

from surge.study.bench.training_networks import NETWORKS
from surge.study.bench.training_speed import MODES, Row

Axis = Literal["batch", "width"]
COMPARED = ("plain", "surge", "tied")
"""Variants of a published sweep."""


@dataclass(frozen=True)
class Sweep:
    """Steps of one network that differ in their batch, or in their width, and in nothing else."""

    network: str
    by: Axis
    rows: tuple[Row, ...]
    """By variant and mode, each from the smallest to the largest."""

    @property
    def fixed(self) -> str:
        """What all steps share, in words."""
        first = self.rows[0]
        return f"batch {first.batch}" if self.by == "width" else f"width {first.width}"


def own_kind(rows: Sequence[Row], network: str) -> list[Row]:
    """Return a network's steps at its own batch and width, or at the smallest that there are."""
    mine = [row for row in rows if row.network == network]
    return _fixed(_fixed(mine, "width"), "batch")


def _fixed(rows: Sequence[Row], by: Axis) -> list[Row]:
    """Keep the steps with the network's own value of an axis, or with the smallest."""
    values = {getattr(row, by) for row in rows}
    known = NETWORKS.get(rows[0].network) if rows else None
    own = 1 if by == "width" else known.batch if known else None
    chosen = own if own in values else min(values, default=None)
    return [row for row in rows if getattr(row, by) == chosen]


def sweeps(rows: Sequence[Row]) -> list[Sweep]:
    """Return what was measured at several batches or widths, network by network."""
    found = []
    for network in dict.fromkeys(row.network for row in rows):
        for by in get_args(Axis):
            mine = _fixed([r for r in rows if r.network == network], _other(by))
            kept = tuple(row for line in _lines(mine, by) for row in line)
            if kept:
                found.append(Sweep(network, by, kept))
    return found


def _other(by: Axis) -> Axis:
    return "width" if by == "batch" else "batch"


def _lines(rows: Sequence[Row], by: Axis) -> list[list[Row]]:
    """Return the steps of each variant and mode that has more than one value, in order."""
    lines: dict[tuple[str, str], list[Row]] = {}
    for row in sorted(rows, key=lambda r: int(getattr(r, by))):
        lines.setdefault((row.variant, row.mode), []).append(row)
    return [line for line in lines.values() if len(line) > 1]


def compared(rows: Sequence[Row]) -> list[Sweep]:
    """Return the sweeps to publish: plain, SURGE and tied, in the fastest way that was measured.

    All steps of a sweep ran one version of the code: of those that measured most, the newest.
    """
    found: dict[tuple[str, Axis], Sweep] = {}
    for commit in dict.fromkeys(row.commit for row in rows):
        mine = [row for row in rows if row.commit == commit and row.variant in COMPARED]
        for sweep in map(_in_fastest_mode, sweeps(mine)):
            kind = sweep.network, sweep.by
            if kind not in found or len(sweep.rows) >= len(found[kind].rows):
                found[kind] = sweep
    return list(found.values())


def _in_fastest_mode(sweep: Sweep) -> Sweep:
    mode = max((row.mode for row in sweep.rows), key=MODES.index)
    kept = {(r.variant, getattr(r, sweep.by)): r for r in sweep.rows if r.mode == mode}
    order = sorted(kept.values(), key=lambda row: COMPARED.index(row.variant))
    return replace(sweep, rows=tuple(order))


def table(sweep: Sweep) -> str:
    """Return milliseconds of a sweep in one mode, variant by variant, and their ratios to plain."""
    times = {(getattr(r, sweep.by), r.variant): r.step_ms for r in sweep.rows}
    variants = list(dict.fromkeys(row.variant for row in sweep.rows))
    others = [v for v in variants if v != "plain"] if "plain" in variants else []
    head = [sweep.by, *(f"{v}, ms" for v in variants), *(f"{v} / plain" for v in others)]
    lines = [f"| {' | '.join(head)} |", f"|{' ---: |' * len(head)}"]
    for value in sorted({value for value, _ in times}):
        plain = times.get((value, "plain"))
        found = [times.get((value, v)) for v in variants]
        cells = [str(value), *("-" if ms is None else f"{ms:.2f}" for ms in found)]
        for ms in (times.get((value, v)) for v in others):
            cells.append("-" if ms is None or plain is None else f"{ms / plain:.3f}")
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"
