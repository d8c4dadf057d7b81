"""``surge detect``: what is where in a picture, by a trained detector."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import tyro

if TYPE_CHECKING:
    from rich.console import Console


@dataclass(frozen=True)
class DetectCommand:
    """Find objects in pictures with a trained detector, and draw their boxes.

    Every drawn picture is written beside its original, as <name>.detected.png, or into --out.

    Example:
        surge detect photo.jpg --model runs/voc-ida-surge-seed0
        surge detect *.jpg --model runs/voc-ida-surge-seed0 --score 0.3 --out drawn
    """

    images: Annotated[tuple[Path, ...], tyro.conf.Positional, tyro.conf.arg(metavar="IMAGE...")]
    """Files that Pillow can read: PNG, JPEG, WebP, ..."""
    model: Path
    """Folder of a run of voc, or one of its checkpoints."""
    score: float = 0.5
    """Least score of what is drawn and listed."""
    out: Path | None = None
    """Folder for the drawn pictures; with a single picture also a file."""
    size: int | None = None
    """Longer side that pictures are resized to; by default as in the run's tests."""
    json: bool = False
    """Print JSON instead of a table."""
    device: str | None = None
    """cpu, cuda, cuda:1; by default a GPU if there is one."""

    def run(self, console: Console) -> int | None:
        """Detect; the exit code is 2 if a picture could not be read."""
        from surge.cli._detecting import detect

        return detect(self, console)


COMMAND = ("detect", DetectCommand)
