"""``surge export``: a trained run as one packed file."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import tyro

if TYPE_CHECKING:
    from rich.console import Console

    from surge.train.run import RunFolder


@dataclass(frozen=True)
class ExportCommand:
    """Pack a trained run into one file for the engine.

    Example:
        surge export runs/cifar10-resnet20-recu-surge-seed1 --out resnet20.surge
        surge export runs/digits-cnn-recu-seed0 --rest int8
    """

    run_folder: Annotated[Path, tyro.conf.Positional]
    """Folder that `surge train` wrote."""
    out: Path | None = None
    """File to write; by default model.surge inside the folder."""
    rest: Literal["fp32", "fp16", "int8"] = "fp32"
    """Type of the weights that are not binary; fp32 keeps every prediction."""

    def run(self, console: Console) -> int | None:
        """Pack."""
        import torch

        from surge.compensation import strip_
        from surge.export import pack
        from surge.train.build import build_network
        from surge.train.checkpoint import load_newest
        from surge.train.run import RunFolder

        folder, recipe, environment = RunFolder.open(self.run_folder)
        state, sentences = load_newest(folder.checkpoints, recipe.name, torch.device("cpu"))
        for sentence in sentences:
            console.print(sentence, markup=False)
        example, facts = _data_facts(recipe.data.name)
        model, _ = build_network(recipe, int(environment["seed"]), example)
        model.load_state_dict(state["model"])
        strip_(model)
        target = self.out or self.run_folder / "model.surge"
        accuracy = _accuracy(folder, int(state["epoch"]))
        packed = pack(model, example, target, rest=self.rest, accuracy=accuracy, **facts)
        console.print(str(packed), markup=False)
        return 0


def _data_facts(name: str) -> tuple[Any, dict[str, Any]]:
    """Return an example input of a data set, its class names and its preprocessing."""
    import torch

    from surge.data.cifar10 import CLASSES
    from surge.data.imageset import HALF, IMAGENET
    from surge.errors import ExportError

    known = {
        "cifar10": ((3, 32, 32), CLASSES, IMAGENET),
        "digits": ((1, 8, 8), tuple(str(digit) for digit in range(10)), HALF),
    }
    if name not in known:
        raise ExportError(f'surge export knows no input size for the data set "{name}".')
    shape, classes, normal = known[name]
    preprocessing = {"mean": normal.mean, "std": normal.std, "maximum": normal.maximum}
    return torch.zeros(1, *shape), {"classes": classes, "preprocessing": preprocessing}


def _accuracy(folder: RunFolder, epochs: int) -> float | None:
    """Return the test accuracy of the epoch that is packed, if it was measured."""
    rows = [row for row in folder.metrics() if row["epoch"] == epochs - 1]
    value = rows[-1].get("test_top1") if rows else None
    return None if value is None else float(value)


COMMAND = ("export", ExportCommand)
