"""``surge bench infer``: how fast a packed network runs beside the engines everybody has."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import tyro

if TYPE_CHECKING:
    from rich.console import Console

GROUP = "Measure speed and memory, always beside something to compare with."


@dataclass(frozen=True)
class BenchInferCommand:
    """Time a packed network beside onnxruntime and OpenVINO, all of them in turns in one run.

    Prints median, 90th percentile, samples per second, memory and file size of the packed network,
    whose float layers are in fp32 and in int8, of its float twin in onnxruntime and OpenVINO (fp32
    and int8) and of OpenVINO's own 1-bit convolutions; then where the time goes, and where binary
    loses. Engines that are not installed are named, not guessed. Networks: resnet18-224,
    resnet18-cifar, resnet20, vggsmall, conv64, conv128, conv256, conv512, linear768x3072.

    Example:
        surge bench infer --network resnet18-224 --json bench.json
        surge bench infer model.surge --threads 2
        surge bench infer --network resnet20 --sweep   # also against image size and batch
    """

    file: Annotated[Path | None, tyro.conf.Positional, tyro.conf.arg(metavar="[FILE]")] = None
    """A packed file to time instead of networks by name; without --network, --size and --sweep."""
    network: tuple[str, ...] = ()
    """Networks by name, several if you like; resnet18-224 if neither this nor a file is given."""
    threads: int = 1
    """Threads of every engine."""
    batch: int = 1
    """Samples per call."""
    size: int | None = None
    """Pixels of the image's side, where a network by name can choose."""
    seconds: float = 20.0
    """Time to measure each network for, all engines together."""
    out: Path = Path("runs/bench")
    """Folder for the pictures and their numbers."""
    json: Path | None = None
    """Also write all rows to this file."""
    sweep: bool = False
    """Also time other image sizes and batches of networks by name, and draw how latency grows."""
    results: Path | None = None
    """Also store the rows in this folder, from which tables are made."""

    def run(self, console: Console) -> int | None:
        """Measure, print, draw."""
        from surge.cli._bench_inference import bench_infer

        bench_infer(self, console)
        return 0


COMMAND = ("bench infer", BenchInferCommand)
