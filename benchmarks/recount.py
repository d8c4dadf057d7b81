"""Count the operations of stored training steps anew, where the counter was blind when they ran.

    python benchmarks/recount.py --networks resnet18-224 reactnet-224 rbonn-224

Changes ``flops`` and ``floor_ms`` in ``results/training.jsonl``, nothing else. A floor becomes the
operations over the highest speed that any stored step of the device implies, if that is longer:
the ceilings of a session are not stored, and a faster one gives a lower floor.
"""

import argparse
import json
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch

from surge.files import write_whole
from surge.study.bench.training_speed import Step

COUNTED = 2
"""Samples that are counted: operations grow with the batch."""


@lru_cache
def operations(network: str, variant: str, width: int = 1) -> int:
    """Return the operations per sample of a training step, as today's counter sees them."""
    return Step(network, variant, "eager", torch.device("cpu"), COUNTED, width).flops() // COUNTED


def unseen(row: dict[str, Any], rows: list[dict[str, Any]]) -> int:
    """Return what the counter did not see of a step: the same in all variants, so in plain."""
    kind = {key: row.get(key, 1) for key in ("network", "batch", "width")}
    plain = next(
        r
        for r in rows
        if r["variant"] == "plain" and all(r.get(k, 1) == v for k, v in kind.items())
    )
    today = operations(row["network"], "plain", kind["width"]) * row["batch"]
    return int(today - plain["flops"])


def fastest(rows: list[dict[str, Any]], hardware: str) -> float:
    """Return the highest speed that the floors of a device imply, in operations per second."""
    own = [row for row in rows if row["hardware"] == hardware and row["floor_ms"]]
    return max((1e3 * row["flops"] / row["floor_ms"] for row in own), default=float("inf"))


def recounted(row: dict[str, Any], rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Return a stored step with all of its operations, and a floor that is not below them."""
    flops = row["flops"] + unseen(row, rows)
    floor = row["floor_ms"]
    if floor and flops != row["flops"]:
        floor = max(floor, 1e3 * flops / fastest(rows, row["hardware"]))
    return {**row, "flops": flops, "floor_ms": floor}


def recount(path: Path, networks: list[str]) -> int:
    """Rewrite a file of steps; return how many changed."""
    lines = path.read_text().splitlines()
    rows = [json.loads(line) for line in lines]
    found = [recounted(row, rows) if row["network"] in networks else row for row in rows]
    kept = [
        line if new == old else json.dumps(new)
        for line, old, new in zip(lines, rows, found, strict=True)
    ]
    write_whole(path, ("\n".join(kept) + "\n").encode())
    return sum(new != old for old, new in zip(rows, found, strict=True))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--networks", nargs="+", required=True)
    parser.add_argument("--results", type=Path, default=Path("results"))
    given = parser.parse_args()
    print(f"{recount(given.results / 'training.jsonl', given.networks)} steps changed")
