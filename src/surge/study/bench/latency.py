"""What ``surge bench infer`` measured: rows, how they are stored, the sentences they allow."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from surge.errors import ConfigError

OURS, BASE, BINARY = "surge", "onnxruntime fp32", "openvino binary"
PROCESSOR = "processor_ms"
QUIET = 0.5
"""Load beside the benchmark's own threads up to which latencies are taken at their word."""
NEEDED = ("network", "engine", "threads", "median_ms", "p90_ms", "file_bytes")
"""What every row has, whoever reads it."""


@dataclass(frozen=True)
class Row:
    """One engine on one network, as ``results/inference.jsonl`` stores it."""

    network: str
    engine: str
    threads: int
    median_ms: float
    p90_ms: float
    file_bytes: int
    batch: int = 1
    size: int | None = None
    """Side of the image, if the input is one."""
    layers: int = 1
    """Equal layers in a row; times are those of one of them, bytes those of all."""
    min_ms: float | None = None
    processor_ms: float | None = None
    """Median of the processor time, all threads together: no neighbour can lengthen it by much."""
    runs: int | None = None
    per_second: float | None = None
    """Samples per second at the median."""
    peak_bytes: int | None = None
    """Memory that loading and running add to a process."""
    difference: float | None = None
    """Norm of (output - torch's) / norm of torch's, for the same network in fp32."""
    load: float | None = None
    """Processes that wanted to run on this machine meanwhile, these included."""
    version: str | None = None
    hardware: str | None = None
    commit: str | None = None

    @property
    def fair_ms(self) -> float:
        """The latency, or the processor time where the machine was busy."""
        return self.processor_ms if self.beside_others and self.processor_ms else self.median_ms

    @property
    def beside_others(self) -> bool:
        """Whether other programs were busy on the machine."""
        return self.load is not None and self.load > self.threads + QUIET

    @property
    def setting(self) -> tuple[object, ...]:
        """What rows must share to be compared."""
        return self.hardware, self.network, self.threads, self.batch, self.size


def ratio(
    rows: Sequence[Row], engine: str, over: str = OURS, *, by: str = "median_ms"
) -> float | None:
    """Return how many times as long ``engine`` takes as ``over``, by their medians."""
    times = {row.engine: getattr(row, by) for row in rows}
    if not times.get(engine) or not times.get(over):
        return None
    return float(times[engine] / times[over])


def fairest(rows: Sequence[Row]) -> str:
    """Return by what rows are compared: the latency, or processor time on a busy machine."""
    busy = rows[0].beside_others and all(row.processor_ms for row in rows)
    return PROCESSOR if busy else "median_ms"


def shown(rows: Sequence[Row]) -> list[dict[str, object]]:
    """Return the rows as the command prints them."""
    return [
        {
            "engine": row.engine,
            "median": f"{row.median_ms:.3f}",
            "p90": f"{row.p90_ms:.3f}",
            "ratio": None if (r := ratio(rows, BASE, row.engine)) is None else f"{r:.2f}",
            "processor": None if row.processor_ms is None else f"{row.processor_ms:.3f}",
            "per_second": None if row.per_second is None else f"{row.per_second:,.0f}",
            "peak": None if row.peak_bytes is None else f"{row.peak_bytes / 1e6:.1f}",
            "file": f"{row.file_bytes / 1e6:.3f}",
        }
        for row in rows
    ]


COLUMNS = {
    "engine": "engine",
    "median": "median, ms",
    "p90": "p90, ms",
    "ratio": f"{BASE} / this",
    "processor": "processor, ms",
    "per_second": "per second",
    "peak": "memory, MB",
    "file": "file, MB",
}


@dataclass(frozen=True)
class Step:
    """One step of the packed network and the microseconds it takes for one sample."""

    name: str
    kind: str
    micros: float

    @property
    def binary(self) -> bool:
        """Whether it multiplies bits."""
        return "binary" in self.kind or "bit" in self.kind


def by_kind(steps: Sequence[Step]) -> dict[str, float]:
    """Return the microseconds of each kind of step, most first."""
    total: dict[str, float] = {}
    for step in steps:
        total[step.kind] = total.get(step.kind, 0.0) + step.micros
    return dict(sorted(total.items(), key=lambda item: -item[1]))


def remarks(
    rows: Sequence[Row], steps: Sequence[Step] = (), widths: Sequence[int] = ()
) -> list[str]:
    """Say plainly what the rows show: who is ahead of the packed network, and why.

    Args:
        rows: One network in one setting.
        steps: Profile of the packed network.
        widths: Input channels of its binary layers.
    """
    said = []
    if (gain := ratio(rows, BASE)) is not None:
        other = ratio(rows, BINARY)
        beside = "" if other is None else f", {other:.2f}x as fast as {BINARY}"
        said.append(f"The packed network is {gain:.2f}x as fast as {BASE}{beside}.")
        said += _busy(rows)
    ahead = [row for row in rows if not row.engine.startswith(OURS) and _wins(row, rows)]
    for row in ahead:
        factor = 1 / (ratio(rows, row.engine) or 1.0)
        said.append(f"Binary loses: {row.engine} is {factor:.2f}x as fast as the packed network.")
    if ahead:
        said += _reasons(steps, widths)
    for row in rows:
        if row.engine in (OURS, BINARY) and (row.difference or 0.0) > 0.1:
            said.append(
                f"Beware: {row.engine} differs from torch by {100 * (row.difference or 0):.0f} % "
                "of the output's norm."
            )
    return said


def _busy(rows: Sequence[Row]) -> list[str]:
    """Warn where neighbours distort latencies: short calls slip between theirs, long ones wait."""
    load, gain = rows[0].load, ratio(rows, BASE, by=PROCESSOR)
    if not rows[0].beside_others or gain is None:
        return []
    other = ratio(rows, BINARY, by=PROCESSOR)
    beside = "" if other is None else f" and {other:.2f}x of {BINARY}"
    return [
        f"The machine was busy (load {load:.1f}), which favours short calls. By processor time it "
        f"is {gain:.2f}x {BASE}{beside}."
    ]


def _wins(row: Row, rows: Sequence[Row]) -> bool:
    found = ratio(rows, row.engine)
    return found is not None and found < 1


def _reasons(steps: Sequence[Step], widths: Sequence[int]) -> list[str]:
    said = []
    whole = sum(step.micros for step in steps)
    if whole:
        rest = sum(step.micros for step in steps if not step.binary)
        top = max((step for step in steps if not step.binary), key=lambda s: s.micros, default=None)
        most = "" if top is None else f", most in {top.name or top.kind} ({top.kind})"
        said.append(
            f"Why: {100 * rest / whole:.0f} % of its time is spent outside the binary layers{most}."
        )
    narrow = [width for width in widths if width < 64]
    if narrow:
        said.append(
            f"Why: {len(narrow)} of {len(widths)} binary layers have fewer than 64 input channels "
            f"({min(narrow)} at least): their bits do not fill one machine word."
        )
    return said


def growth(rows: Sequence[Row]) -> list[str]:
    """Say how the packed network's time grows with the pixels of an image and with the batch."""
    mine = [row for row in rows if row.engine == OURS]
    points = {
        "pixels": [(r.size**2, r.fair_ms) for r in mine if r.batch == 1 and r.size],
        "batch": [(r.batch, r.fair_ms) for r in mine if r.size == mine[-1].size],
    }
    said = []
    for what, found in points.items():
        if len(found) > 1 and min(found)[0] < max(found)[0]:
            (least, short), (most, long) = min(found), max(found)
            said.append(
                f"{most / least:.1f} times the {what} take {long / short:.1f} times as long."
            )
    return said


def append(folder: Path, rows: Sequence[Row]) -> Path:
    """Store rows; those of the same setting, stored earlier, are replaced."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "inference.jsonl"
    fresh = {(row.setting, row.engine) for row in rows}
    kept = [row for row in read(folder) if (row.setting, row.engine) not in fresh]
    path.write_text("".join(json.dumps(asdict(row)) + "\n" for row in [*kept, *rows]))
    return path


def read(folder: Path) -> list[Row]:
    """Return the stored rows, oldest first."""
    path = folder / "inference.jsonl"
    known = {field.name for field in fields(Row)}
    rows = []
    for number, line in enumerate(path.read_text().splitlines() if path.exists() else [], start=1):
        try:
            content: dict[str, Any] = json.loads(line)
            rows.append(Row(**{key: value for key, value in content.items() if key in known}))
        except (json.JSONDecodeError, TypeError, AttributeError) as error:
            raise ConfigError(f"{path}, line {number} is not a result: {error!r}.") from error
    return rows


def as_json(rows: Sequence[Row], steps: Mapping[str, Sequence[Step]]) -> list[dict[str, Any]]:
    """Return the rows as ``--json`` writes them; those of the packed file have its profile."""
    return [
        {
            **asdict(row),
            **(
                {"profile": [asdict(step) for step in steps[row.network]]}
                if row.engine == OURS and steps.get(row.network)
                else {}
            ),
        }
        for row in rows
    ]
