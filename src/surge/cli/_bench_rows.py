"""How the timings of ``surge bench infer`` become rows: beside them, where they were taken."""

from __future__ import annotations

import importlib.metadata
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from surge.study.bench.contenders import Contender
from surge.study.bench.latency import Row
from surge.study.bench.timing import Timing
from surge.train.run import git_state, hardware


@dataclass(frozen=True)
class Place:
    """Where it is measured, for every row."""

    hardware: str
    commit: str | None
    threads: int

    @staticmethod
    def here(threads: int) -> Place:
        """Name the processor, its cores and the kernels that the engine chose for it."""
        import surge_runtime

        cores = os.cpu_count() or 1
        described = hardware(torch.device("cpu"))
        processor = described.rpartition(", ")[0] or described
        name = f"{processor}, {cores} core{'s' * (cores > 1)}, {surge_runtime.tiers()[0]}"
        return Place(name, git_state()[0], threads)

    def rows(
        self,
        network: str,
        contenders: Sequence[Contender],
        timed: Mapping[str, Timing],
        batch: np.ndarray[Any, Any],
        layers: int = 1,
    ) -> list[Row]:
        """Return a row per contender; to be called as soon as they are timed."""
        load = round(os.getloadavg()[0], 2) if hasattr(os, "getloadavg") else None
        rows = []
        for contender in contenders:
            timing = timed[contender.engine]
            package = {"surge": "surge-runtime"}.get(contender.family, contender.family)
            rows.append(
                Row(
                    network=network,
                    engine=contender.engine,
                    threads=self.threads,
                    median_ms=round(1e3 * timing.median / layers, 5),
                    p90_ms=round(1e3 * timing.p90 / layers, 5),
                    file_bytes=contender.file_bytes,
                    batch=len(batch),
                    size=batch.shape[-1] if batch.ndim == 4 else None,
                    layers=layers,
                    min_ms=round(1e3 * timing.least / layers, 5),
                    processor_ms=round(1e3 * (timing.processor or 0.0) / layers, 5),
                    runs=len(timing.times),
                    per_second=round(len(batch) * layers / timing.median, 2),
                    load=load,
                    version=f"{package} {_version(package)}",
                    hardware=self.hardware,
                    commit=self.commit,
                )
            )
        return rows


def _version(package: str) -> str:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return "from source"
