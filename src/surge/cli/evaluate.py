"""``surge evaluate``: a trained run on its test images, class by class."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import tyro

from surge.cli.console import print_table, say

if TYPE_CHECKING:
    from rich.console import Console


@dataclass(frozen=True)
class EvaluateCommand:
    """Test a run: top-1, accuracy per class, and the confusion matrix as a picture.

    The newest checkpoint is used, on the images that the run was tested on while it trained. The
    picture and its numbers go to the run's figures folder.

    Example:
        surge evaluate runs/digits-cnn-recu-surge-seed0
    """

    run_folder: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="RUN")]
    """The folder of a run."""
    data: str | None = None
    """Folder of the data sets; else $SURGE_DATA, else ./data."""
    device: str | None = None
    """cpu, cuda, cuda:1; by default a GPU if there is one."""

    def run(self, console: Console) -> int | None:
        """Evaluate, print, draw."""
        import os

        from surge.cli._training import choose_device
        from surge.data import resolve_root
        from surge.study import confusion, figures
        from surge.study.results import data_name
        from surge.train.evaluate import evaluate_run
        from surge.train.run import RunFolder

        root = resolve_root(self.data, os.environ)
        data = RunFolder.open(self.run_folder)[1].data
        if data.name == "voc":
            return self._find(console, root)
        if data.length is not None:
            return self._score(console, root)
        figures.require()  # now, not after the work
        found = evaluate_run(self.run_folder, root, choose_device(self.device))
        for note in found.notes:
            say(console, note, style="yellow")
        name = f"{found.recipe.name}, seed {found.seed}"
        facts = (
            f"top-1 {found.top1:.2f} %{_top5(found.top5)} on {int(found.confusion.sum())} images "
            f"({data_name(found.recipe)}), after epoch {found.epochs} of "
            f"{found.recipe.train.epochs}"
        )
        rows = [_shown(row) for row in found.per_class()]
        print_table(console, rows, title=name)
        say(console, facts, style="bold")
        figure = confusion.draw(found.classes, found.confusion, title=name, facts=facts)
        path = self.run_folder / "figures" / "confusion.png"
        for written in figures.save(figure, found.rows(), path):
            say(console, f"wrote {written}")
        return 0

    def _score(self, console: Console, root: Path) -> int:
        """Print the metrics of a run on sentences."""
        from surge.cli._training import choose_device
        from surge.study.results import data_name
        from surge.train.evaluate import evaluate_text

        trainer, scores = evaluate_text(self.run_folder, root, choose_device(self.device))
        recipe = trainer.recipe
        rows: list[dict[str, object]] = [
            {"metric": name, "percent": f"{value:.2f}"} for name, value in scores.items()
        ]
        print_table(console, rows, title=f"{recipe.name}, seed {trainer.seed}")
        say(
            console,
            f"{len(trainer.sets[1])} examples ({data_name(recipe)}), after epoch {trainer.epoch} "
            f"of {recipe.train.epochs}",
            style="bold",
        )
        return 0

    def _find(self, console: Console, root: Path) -> int:
        """Print the average precision of a detector, class by class."""
        from surge.cli._training import choose_device
        from surge.study.results import data_name
        from surge.train.detection.predict import evaluate_detector

        found = evaluate_detector(self.run_folder, root, choose_device(self.device))
        recipe = found.recipe
        print_table(console, found.per_class(), title=f"{recipe.name}, seed {found.seed}")
        say(
            console,
            f"mean average precision {found.eleven.mean:.2f} % (VOC2007's eleven points), "
            f"{found.area.mean:.2f} % (area) on {found.images} images ({data_name(recipe)}), after "
            f"epoch {found.epochs} of {recipe.train.epochs}",
            style="bold",
        )
        return 0


def _top5(value: float | None) -> str:
    return "" if value is None else f", top-5 {value:.2f} %"


def _shown(row: dict[str, object]) -> dict[str, object]:
    top1 = row["top1"]
    return {**row, "top1": None if top1 is None else f"{top1:.2f}"}


COMMAND = ("evaluate", EvaluateCommand)
