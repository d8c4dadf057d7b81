"""The published table of inference times, generated from ``results/inference.jsonl``."""

from collections.abc import Iterable, Sequence
from pathlib import Path

from surge.study.bench.contenders import ENGINES
from surge.study.bench.latency import BASE, BINARY, OURS, PROCESSOR, Row, fairest, ratio, read
from surge.study.bench.workloads import NETWORKS


def section(folder: Path) -> str:
    """Return the published table: one row per setting, one column per engine, ARM still open."""
    order = {name: place for place, name in enumerate(NETWORKS)}
    rows = sorted(read(folder), key=lambda r: (order.get(r.network, len(order)), r.threads))
    settings: dict[tuple[object, ...], list[Row]] = {}
    for row in rows:
        settings.setdefault(row.setting, []).append(row)
    head = ["network", "threads", *ENGINES, *(f"{other} / surge" for other in (BASE, BINARY))]
    lines = [f"| {' | '.join(head)} |", f"| --- |{' ---: |' * (len(head) - 1)}"]
    machines = list(dict.fromkeys(row.hardware for row in rows))
    for machine in machines:
        lines.append(f"| *{machine}* |{' |' * (len(head) - 1)}")
        for found in settings.values():
            if found[0].hardware == machine:
                lines.append(_line(found))
    lines.append("| *an ARM board* |" + " |" * (len(head) - 1))
    lines.append(f"| resnet18-224 | 1 |{' open |' * (len(head) - 2)}")
    files = _files(settings.values())
    loads = [row.load for row in rows if row.load is not None]
    busy = f" Load of the machine: {min(loads):.1f} to {max(loads):.1f}." if loads else ""
    return "\n".join(lines) + "\n" + (f"\n{files}{busy}\n" if files else "")


def _line(rows: Sequence[Row]) -> str:
    """Return one row: latencies, or processor times (*p*) where the machine was busy."""
    first = rows[0]
    by = fairest(rows)
    mark = " p" if by == PROCESSOR else ""
    times = {row.engine: getattr(row, by) for row in rows}
    name = first.network if first.batch == 1 else f"{first.network}, batch {first.batch}"
    cells = [name, str(first.threads)]
    cells += [f"{times[e]:.3f}{mark}" if e in times else "-" for e in ENGINES]
    for other in (BASE, BINARY):
        found = ratio(rows, other, by=by)
        cells.append("-" if found is None else f"{found:.2f}")
    return f"| {' | '.join(cells)} |"


def _files(settings: Iterable[Sequence[Row]]) -> str:
    """Return the sizes of the files of each network, in one sentence each."""
    said: dict[str, str] = {}
    for rows in settings:
        sizes = {row.engine: row.file_bytes for row in rows}
        if rows[0].layers == 1 and OURS in sizes and BASE in sizes and rows[0].network not in said:
            small = sizes.get("surge int8", sizes[OURS])
            said[rows[0].network] = (
                f"{rows[0].network} {sizes[BASE] / 1e6:.2f} MB in fp32, {sizes[OURS] / 1e6:.2f} MB "
                f"packed, {small / 1e6:.2f} MB with an int8 rest"
            )
    return f"Files: {'; '.join(said.values())}." if said else ""
