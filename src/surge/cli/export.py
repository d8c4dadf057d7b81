"""``surge export``: a trained run as one file, for our engine or for somebody else's."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import tyro

if TYPE_CHECKING:
    from rich.console import Console
    from torch import nn

    from surge.train.run import RunFolder


SUFFIXES = {"surge": ".surge", "onnx": ".onnx", "openvino": ".xml"}


@dataclass(frozen=True)
class ExportCommand:
    """Write a trained run as one file: 1 bit per weight for the engine, or ONNX, or OpenVINO.

    The packed file (.surge) is what surge_runtime runs. ONNX has no bits: its file is as large as
    that of a float network. OpenVINO has 1-bit convolutions; layers that it cannot take are listed
    and stay float. Both are compared with torch before anything is written.

    Example:
        surge export runs/cifar10-resnet20-recu-surge-seed1 --out resnet20.surge
        surge export runs/digits-cnn-recu-seed0 --rest int8
        surge export runs/digits-cnn-recu-seed0 --to openvino
    """

    run_folder: Annotated[Path, tyro.conf.Positional]
    """Folder that `surge train` wrote."""
    out: Path | None = None
    """File to write; by default model.surge, model.onnx or model.xml inside the folder."""
    to: Literal["surge", "onnx", "openvino"] = "surge"
    """The engine that will run it."""
    rest: Literal["fp32", "fp16", "int8"] | None = None
    """Type of the weights that are not binary, in a packed file; fp32 keeps every prediction."""

    def run(self, console: Console) -> int | None:
        """Export."""
        import torch

        from surge import export
        from surge.errors import ConfigError

        if self.rest is not None and self.to != "surge":
            raise ConfigError(f"--rest is for packed files; --to {self.to} keeps fp32.")
        model, example, facts, sentences = load_run(self.run_folder)
        for sentence in sentences:
            console.print(sentence, markup=False)
        # Zeros would hide a mistake: with them all signs are the same.
        probe = torch.randn(example.shape, generator=torch.Generator().manual_seed(0))
        target = self.out or self.run_folder / f"model{SUFFIXES[self.to]}"
        written: object
        if self.to == "surge":
            written = export.pack(model, example, target, rest=self.rest or "fp32", **facts)
        elif self.to == "onnx":
            written = export.to_onnx(model, probe, target)
        else:
            written = export.to_openvino(model, probe, target)
        console.print(str(written), markup=False, soft_wrap=True)
        return 0


def load_run(run_folder: Path) -> tuple[nn.Module, Any, dict[str, Any], tuple[str, ...]]:
    """Return a run's stripped network, an example input, facts for ``pack``, and what to say."""
    import torch

    from surge.compensation import strip_
    from surge.train.build import build_network
    from surge.train.checkpoint import load_newest
    from surge.train.run import RunFolder

    folder, recipe, environment = RunFolder.open(run_folder)
    state, sentences = load_newest(folder.checkpoints, recipe.name, torch.device("cpu"))
    example, facts = _data_facts(recipe.data.name)
    model, _ = build_network(recipe, int(environment["seed"]), example)
    model.load_state_dict(state["model"])
    strip_(model)
    facts["accuracy"] = _accuracy(folder, int(state["epoch"]))
    return model.eval(), example, facts, tuple(sentences)


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
