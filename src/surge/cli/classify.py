"""``surge classify``: what is in a picture, by a packed network."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import tyro

if TYPE_CHECKING:
    from rich.console import Console


@dataclass(frozen=True)
class ClassifyCommand:
    """Name what is in pictures, with a binary network that comes with the package.

    Works offline, in the engine, without torch. Pictures are cut to a square about their middle
    and resized to what the network was trained on (32x32 for CIFAR-10); the output says so.

    Example:
        surge classify photo.jpg other.png
        surge classify photo.jpg --model runs/digits-cnn-recu-seed0/model.surge --top 3
    """

    images: Annotated[tuple[Path, ...], tyro.conf.Positional, tyro.conf.arg(metavar="IMAGE...")]
    """Files that Pillow can read: PNG, JPEG, WebP, ..."""
    model: str = "vggsmall-cifar10"
    """A network that is shipped, or a packed file."""
    top: int = 5
    """How many classes to name."""
    json: bool = False
    """Print JSON instead of lines."""
    threads: int = 1
    """Threads of the engine."""

    def run(self, console: Console) -> int | None:
        """Classify; the exit code is 2 if a picture could not be read."""
        from surge.cli._classifying import classify

        return classify(self, console)


COMMAND = ("classify", ClassifyCommand)
