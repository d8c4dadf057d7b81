"""``surge reproduce``: fill a results table, a few minutes at a time."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import tyro

from surge.cli._seeds import Seeds

if TYPE_CHECKING:
    from rich.console import Console


@dataclass(frozen=True)
class ReproduceCommand:
    """Run what is missing of a table within a time budget, and print the table.

    Call it again to go on. Runs that are known to take longer than what is left of the budget are
    not begun. With --each both arms of a pair train equally long, however many steps that is, and
    teachers are trained in full; a trial times the steps and does not count, nor does compiling.
    It does not go with --jobs or --together.

    Example:
        surge reproduce digits --seeds 0-11
        surge reproduce cifar10 --rows resnet20-recu resnet20-recu-surge --seeds 0 1 2 --budget 9m
        surge reproduce common --jobs 16 --seeds 0 --budget 9m
        surge reproduce cifar10 --table-only
        surge reproduce imagenet --data /srv/imagenet --seeds 0
        surge reproduce glue --model bert --rows mrpc-bit mrpc-bit-surge --seeds 0 --budget 9m
        surge reproduce glue --model bert --rows mrpc-bit mrpc-bit-surge --each 60s --budget 9m
        surge reproduce cifar10 --rows resnet20-recu resnet20-recu-surge --eta 0.001 0.1 --epochs 60
        surge reproduce voc --short --backbone resnet18.pth --seeds 0 --budget 9m
    """

    table: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="TABLE")]
    """digits, cifar10, common, imagenet, imagenette, voc, glue."""
    rows: tuple[str, ...] = ()
    """Rows to run, also <row>-surge-<variant>; all rows of the table by default."""
    model: str | None = None
    """Folder of a pretrained BERT with its tokenizer (GLUE)."""
    backbone: str | None = None
    """A pretrained ResNet-18 for the float detector, a file or a run (VOC)."""
    short: bool = False
    """The form of the rows for few and small images (VOC)."""
    seeds: Seeds = (0, 1, 2)
    """Seeds, 0 1 2 or 0-11; all rows of a seed have the same start weights and the same data."""
    epochs: int | None = None
    """Another number of epochs than the recipes say."""
    each: str | None = None
    """Fit the schedule of every student to this time (90s, 15m; GLUE); see above."""
    eta: tuple[float, ...] = ()
    """Add a row for each of these shares to every row with SURGE: <row>-eta0.1."""
    fixed_scale: tuple[float, ...] = ()
    """Add a row for each of these scales, which is then not adapted: <row>-fixed0.1."""
    size: int | None = None
    """Side of the crops that networks see (imagenet, imagenette), longer side of images (voc)."""
    held_out: bool = False
    """Test on 10 % of the training set instead of the test set."""
    test_epochs: int | None = None
    """Test after every so many epochs, and after the last; the best epoch is one of those."""
    budget: str | None = None
    """Stop after this time (90s, 9m, 2h), at the end of an epoch or half a minute later."""
    jobs: int = 1
    """Runs side by side, each in a process of its own: as soon as one ends the next begins."""
    together: int = 1
    """Runs side by side in one process, as streams of one GPU; not with --jobs."""
    compiled: bool | None = None
    """Force torch.compile on or off; a short run is over before a compiler is done."""
    captured: bool | None = None
    """Force CUDA-graph capture on or off."""
    data: str | None = None
    """Folder of the data sets; else $SURGE_DATA, else ./data."""
    runs: Path = Path("runs")
    """Where run folders are kept."""
    results: Path = Path("results")
    """Where finished runs are stored."""
    device: str | None = None
    """cpu, cuda, cuda:1; by default a GPU if there is one."""
    workers: int | None = None
    """Processes that decode image files for each run; by default its share of the cores."""
    commit: str | None = None
    """Commit to record where there is no repository."""
    table_only: bool = False
    """Train nothing; print the table from what is stored."""

    def run(self, console: Console) -> int | None:
        """Work through the queue."""
        from surge.cli._reproducing import reproduce

        return 1 if reproduce(self, console) else 0


COMMAND = ("reproduce", ReproduceCommand)
