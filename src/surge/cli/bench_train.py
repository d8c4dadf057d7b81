"""``surge bench train``: what SURGE costs in a training step."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console


@dataclass(frozen=True)
class BenchTrainCommand:
    """Time training steps: plain, SURGE as the paper prints it, and SURGE as it is done here.

    Variants: plain, literal (the paper's formula written out, eager only; needs a checkout),
    surge, and its variants tied, 1x1, lowrank, frozen, fourth (auxiliary weights learn in every
    fourth step), half and salient (half of the layers, at random or those that clip most), fp8.
    Modes: eager, compiled, captured (compiled and replayed from a CUDA graph), lean (captured, and
    the backward computes again what it need not keep).
    Steps of one network are timed in turns. Beside each stand the memory, what the forward saves
    for the backward, the operations, and the least time that the device's measured ceilings allow.
    Networks: resnet20, resnet18-cifar, vggsmall, resnet18-224 (Bi-Real Net's), reactnet-224,
    rbonn-224, bert-base.

    Example:
        surge bench train --network resnet20 --json bench.json
        surge bench train --network resnet18-224 bert-base --modes captured --variants plain surge
        surge bench train --network resnet20 --modes captured --width 1 2 4
        surge bench train --network resnet20 --device cpu --batch 16 --modes eager
    """

    network: tuple[str, ...] = ("resnet20",)
    """Networks by name."""
    variants: tuple[str, ...] = ()
    """Which paths to compare; by default plain, literal (in a checkout), surge and tied."""
    modes: tuple[str, ...] = ()
    """How steps run; by default all that the device can do."""
    batch: tuple[int, ...] = ()
    """Samples per step, several to see how the cost grows; by default the recipe's."""
    width: tuple[int, ...] = (1,)
    """Factors on the channels of every layer, several to see how the cost grows (resnet20)."""
    device: str | None = None
    """cuda or cpu; by default a GPU if there is one."""
    seconds: float = 6.0
    """Time to measure each network and mode for, all variants together."""
    jobs: int = 1
    """Steps built at a time, each in a process of its own; the GPU must hold all of them."""
    patience: float = 900.0
    """Seconds to wait for steps to be built; what is not ready by then is left out, and named."""
    profile: bool = False
    """Also list a step's kernels by kind (GPU); stored for the network's own batch and width."""
    out: Path = Path("runs/bench")
    """Folder for the picture and its numbers."""
    json: Path | None = None
    """Also write all rows to this file."""
    results: Path | None = None
    """Also store the rows in this folder, from which tables are made."""
    commit: str | None = None
    """The commit of the code, where no repository is at hand."""

    def run(self, console: Console) -> int | None:
        """Measure, print, draw."""
        from surge.cli._bench_training import bench_train

        bench_train(self, console)
        return 0


COMMAND = ("bench train", BenchTrainCommand)
