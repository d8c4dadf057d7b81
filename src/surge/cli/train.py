"""``surge train``: one recipe, one seed, one run folder."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import tyro

if TYPE_CHECKING:
    from rich.console import Console


@dataclass(frozen=True)
class TrainCommand:
    """Train a recipe; a killed run continues with --resume.

    Rows of GLUE fit their schedule to --budget.

    Example:
        surge train digits-cnn-recu-surge --seed 1
        surge train cifar10-resnet20-recu-surge --seed 1 --epochs 60
        surge train --resume runs/cifar10-resnet20-recu-surge-seed1
        torchrun --nproc-per-node 2 -m surge train cifar10-resnet20-recu
        surge train glue-mrpc-teacher --model bert
        surge train glue-mrpc-bit-surge --model bert --teacher runs/glue-mrpc-teacher-seed0
        surge train imagenette-onestage-reactnet-surge
        torchrun --nproc-per-node 8 --max-restarts 3 -m surge train imagenet-onestage-reactnet-surge
        surge train voc-float --short --backbone resnet18.pth
    """

    recipe: Annotated[str | None, tyro.conf.Positional, tyro.conf.arg(metavar="[RECIPE]")] = None
    """Name of a recipe, <table>-<row>[-surge[-variant]]; --list shows them."""
    seed: Annotated[int | None, tyro.conf.arg(help_behavior_hint="(default: 0)")] = None
    """Decides start weights, data order and crops."""
    epochs: int | None = None
    """Train for another number of epochs than the recipe says."""
    model: str | None = None
    """Folder of a pretrained BERT with its tokenizer (GLUE)."""
    teacher: str | None = None
    """Folder of the run whose network a student learns from; for images also torchvision's file."""
    start: str | None = None
    """Folder of the run that this one begins with (second stages, 1-bit detectors)."""
    backbone: str | None = None
    """A pretrained ResNet-18, a file or a run (VOC); its first layers then stay as they are."""
    short: bool = False
    """The form of a row for few and small images (VOC)."""
    size: int | None = None
    """Side of the crops (ImageNet, Imagenette) or longer side of the images (VOC) that are seen."""
    batch: int | None = None
    """Images per step, over all processes; the learning rate stays unless --lr says otherwise."""
    lr: float | None = None
    """Highest learning rate."""
    label_smoothing: float | None = None
    """Mass that the loss moves from the true class to all classes."""
    sync_norm: bool = False
    """Take the statistics of BatchNorms over all processes."""
    eta: float | None = None
    """Share of the gradient's norm that SURGE injects, instead of the recipe's."""
    fixed_scale: float | None = None
    """Keep SURGE's scale at this number instead of adapting it."""
    align: float | None = None
    """Another weight for SURGE's alignment loss than the recipe says."""
    scores: Literal["softmax", "mse"] | None = None
    """Loss of a single logit: BiT's, which is zero, or the squared error (STS-B)."""
    teacher_dropout: bool = False
    """Run the teacher with dropout, as BiT's public script does."""
    held_out: bool = False
    """Test on 10 % of the training set instead of the test set."""
    test_epochs: int | None = None
    """Test after every so many epochs, and after the last; the best epoch is one of those."""
    limit: int | None = None
    """Use only the first images of each part."""
    precision: Literal["fp32", "tf32", "bf16"] | None = None
    """Arithmetic on a GPU."""
    accumulate: int | None = None
    """Split every batch into this many parts."""
    data: str | None = None
    """Folder of the data sets; else $SURGE_DATA, else ./data."""
    out: Path | None = None
    """Folder of this run; by default runs/<recipe>-seed<seed>."""
    resume: Path | None = None
    """Continue the run in this folder; nothing else is needed."""
    results: Path = Path("results")
    """Folder of the table that the finished run is added to."""
    device: str | None = None
    """cpu, cuda, cuda:1; by default a GPU if there is one."""
    compiled: bool | None = None
    """Force torch.compile on or off."""
    captured: bool | None = None
    """Force CUDA-graph capture on or off."""
    lean: bool = False
    """Compute signs, masks and norms again in the backward: less memory for a little time."""
    workers: int | None = None
    """Processes that decode images, per training process; by default its share of the cores."""
    save_every: float = 30.0
    """Seconds between checkpoints; 0 writes one after every epoch."""
    save_steps: int | None = None
    """Also write a checkpoint after every so many steps: an epoch of ImageNet is long."""
    budget: str | None = None
    """Stop after this time (90s, 9m, 2h), at an epoch's end or half a minute later inside one."""
    commit: str | None = None
    """Commit to record where there is no repository."""
    record: bool = False
    """Record gradients and weights of every layer (probe.jsonl), in 2 % of the time of a run."""
    record_every: int | None = None
    """Epochs from one record to the next; by default 10, or more where the 2 % need it."""
    record_theorem: bool = False
    """Also record the optimal scale and the corollary's premises (slower)."""
    tensorboard: bool = False
    """Also write TensorBoard events into the run folder."""
    list: bool = False
    """Show all recipes and stop."""

    def run(self, console: Console) -> int | None:
        """Train."""
        from surge.cli._training import list_recipes, train_one

        if self.list:
            list_recipes(console)
            return 0
        train_one(self, console)
        return 0


COMMAND = ("train", TrainCommand)
