"""``surge export``: a trained run as one file, for our engine or for somebody else's."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import tyro

if TYPE_CHECKING:
    from rich.console import Console
    from torch import nn

    from surge.data.imageset import Normalization
    from surge.recipes.recipe import Recipe
    from surge.train.run import RunFolder


SUFFIXES = {"surge": ".surge", "onnx": ".onnx", "openvino": ".xml"}


@dataclass(frozen=True)
class ExportCommand:
    """Write a trained run as one file: 1 bit per weight for the engine, or ONNX, or OpenVINO.

    The packed file (.surge) is what surge_runtime runs. ONNX has no bits: its file is as large as
    that of a float network. OpenVINO has 1-bit convolutions; layers that it cannot take are listed
    and stay float. Both are compared with torch before anything is written. Of a detector the
    backbone is written, whose four stages come out as one vector.

    Example:
        surge export runs/cifar10-resnet20-recu-surge-seed1 --out resnet20.surge
        surge export runs/digits-cnn-recu-seed0 --rest int8
        surge export runs/digits-cnn-recu-seed0 --to openvino
    """

    run_folder: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="RUN")]
    """Folder that `surge train` wrote, or one checkpoint of an unchanged recipe."""
    out: Path | None = None
    """File to write; by default model.surge, model.onnx or model.xml inside the folder."""
    to: Literal["surge", "onnx", "openvino"] = "surge"
    """The engine that will run it."""
    rest: Literal["fp32", "fp16", "int8"] | None = None
    """Type of the weights that are not binary, in a packed file; fp32 keeps every prediction."""
    measure: bool = False
    """Run a packed file on all test images, beside torch, and note both accuracies in it."""
    data: str | None = None
    """Folder of the data sets, for --measure; else $SURGE_DATA, else ./data."""

    def run(self, console: Console) -> int | None:
        """Export."""
        import torch

        from surge import export
        from surge.cli.console import say
        from surge.errors import ConfigError

        if self.to != "surge" and (self.rest is not None or self.measure):
            option = "--rest" if self.rest is not None else "--measure"
            raise ConfigError(f"{option} is for packed files, not for --to {self.to}.")
        target = self._target()
        recipe, model, example, facts, sentences = load_run(self.run_folder)
        for sentence in sentences:
            console.print(sentence, markup=False)
        # Zeros would hide a mistake: with them all signs are the same.
        probe = torch.randn(example.shape, generator=torch.Generator().manual_seed(0))
        if not example.is_floating_point():
            if self.to != "surge":
                raise ConfigError(f"A BERT is packed for our engine only, not --to {self.to}.")
            if recipe.method is None:
                raise ConfigError(
                    f"{recipe.name} is a float BERT, for which the engine has no attention; binary "
                    "ones pack, such as a student that learnt from it."
                )
            if self.measure:
                raise ConfigError(f"--measure is for images; {recipe.name} reads sentences.")
            probe = example
        if self.measure and recipe.data.name == "voc":
            raise ConfigError(f"--measure counts right classes; {recipe.name} finds boxes.")
        written: object
        measured = None
        if self.to == "surge":
            packed = export.pack(model, example, target, rest=self.rest or "fp32", **facts)
            if self.measure:
                measured = _measure(target, recipe, model, self.data)
            written = replace(packed, file_bytes=target.stat().st_size)  # with what was noted
        elif self.to == "onnx":
            written = export.to_onnx(model, probe, target)
        else:
            written = export.to_openvino(model, probe, target)
        say(console, str(written))
        if measured is not None:
            say(console, measured)
        return 0

    def _target(self) -> Path:
        """Return the file to write: of the kind that its name says, and over nothing but its like.

        Raises:
            ConfigError: ``--out`` is named as another engine's file, or something else is there.
        """
        from surge.errors import ConfigError
        from surge.export.deploy import target_path

        source, suffix = self.run_folder, SUFFIXES[self.to]
        target = self.out or (source if source.is_dir() else source.parent) / f"model{suffix}"
        for engine, ending in SUFFIXES.items():
            if target.suffix == ending != suffix:
                raise ConfigError(
                    f"--out {target} is named as a file of --to {engine}: give that, or let the "
                    f"name end in {suffix}."
                )
        if self.to != "surge":
            target = target_path(target, suffix)
        files = [target, *([target.with_suffix(".bin")] if self.to == "openvino" else [])]
        if source.resolve() in (file.resolve() for file in files):
            raise ConfigError(f"{source} would be written over: choose another file with --out.")
        if target.is_file() and target.suffix != suffix:
            raise ConfigError(
                f"--out {target} is there and does not end in {suffix}: choose another file, or "
                "move it away."
            )
        return target


def load_run(path: Path) -> tuple[Recipe, nn.Module, Any, dict[str, Any], tuple[str, ...]]:
    """Return a run's recipe, plain network, example input, facts for ``pack``, and remarks.

    ``path`` is a run folder, or one checkpoint of a recipe that has not been changed.
    """
    import torch

    from surge.errors import CheckpointMismatchError
    from surge.recipes import get_recipe
    from surge.train.build import alone, build_network, load_trained_
    from surge.train.checkpoint import load_newest, load_one
    from surge.train.run import RunFolder

    sentences: list[str] = []
    accuracy = None
    if path.is_file():
        state = load_one(path, None, torch.device("cpu"))
        recipe, seed = get_recipe(str(state.get("recipe"))), 0
        if recipe.data.name == "voc":
            return _load_stages(path)
        if recipe.model.name == "bert":
            raise CheckpointMismatchError(
                f"{path} holds {recipe.name}, and only the folder of its run says which BERT that "
                "is: export the folder."
            )
    else:
        folder, recipe, environment = RunFolder.open(path)
        if recipe.data.name == "voc":
            return _load_stages(path)
        state, sentences = load_newest(folder.checkpoints, recipe.name, torch.device("cpu"))
        accuracy, seed = _accuracy(folder, int(state["epoch"])), int(environment["seed"])
    example, facts = _data_facts(recipe.data.name, recipe.data.length)
    if recipe.data.size is not None:
        example = torch.zeros(1, 3, recipe.data.size, recipe.data.size)
    model, _ = build_network(alone(recipe), seed, example)
    load_trained_(model, state, recipe, path)
    return recipe, model.eval(), example, {**facts, "accuracy": accuracy}, tuple(sentences)


def _load_stages(path: Path) -> tuple[Recipe, nn.Module, Any, dict[str, Any], tuple[str, ...]]:
    """Return what ``load_run`` does, of a detector: its backbone, for the largest wide picture."""
    import torch

    from surge.data.batch import padded
    from surge.data.imageset import IMAGENET
    from surge.data.voc_loader import scale_of
    from surge.models.pyramid import JoinedStages
    from surge.train.detection.predict import load_detector

    recipe, detector = load_detector(path, torch.device("cpu"))
    assert recipe.data.size is not None
    width, height = (padded(side) for side in scale_of(recipe.data.size))
    said = (
        f"{recipe.name}: the backbone, for pictures padded to {height}x{width}; its four stages "
        "are one vector, which surge.models.pyramid.JoinedStages.parted takes apart."
    )
    facts = {"preprocessing": _preprocessing(IMAGENET)}
    model = JoinedStages(detector.backbone).eval()
    return recipe, model, torch.zeros(1, 3, height, width), facts, (said,)


def _preprocessing(normal: Normalization) -> dict[str, Any]:
    return {"mean": normal.mean, "std": normal.std, "maximum": normal.maximum}


def _measure(path: Path, recipe: Recipe, model: nn.Module, data: str | None) -> str:
    """Test a packed file and its model, note both accuracies in the file, and say them."""
    import os

    from surge.data import ImageSet, resolve_root
    from surge.errors import ConfigError
    from surge.pretrained import add_facts, engine_accuracy, torch_accuracy
    from surge.study.results import data_name
    from surge.train.build import load_sets
    from surge.train.photos.loading import middle_of

    _, images = load_sets(recipe.data, resolve_root(data, os.environ))
    if not isinstance(images, ImageSet):
        raise ConfigError(f"--measure needs images in memory; {recipe.data.name} has none there.")
    if recipe.data.size is not None:
        images = middle_of(images, recipe.data.size)
    tested = data_name(recipe)
    engine, reference = engine_accuracy(path, images), torch_accuracy(model, images)
    add_facts(
        path,
        {
            "accuracy": f"{engine:.2f}",
            "accuracy_torch": f"{reference:.2f}",
            "tested_on": f"{tested}, {len(images)} images",
            "recipe": recipe.name,
        },
    )
    return (
        f"top-1 on {len(images)} images ({tested}): {engine:.2f} % in the engine, "
        f"{reference:.2f} % in torch; both are noted in the file."
    )


def _data_facts(name: str, length: int | None) -> tuple[Any, dict[str, Any]]:
    """Return an example input of a data set, its class names and its preprocessing."""
    import torch

    from surge.data.cifar10 import CLASSES
    from surge.data.folders import IMAGENETTE
    from surge.data.glue import get_task
    from surge.data.imageset import HALF, IMAGENET
    from surge.errors import ExportError

    if length is not None:
        tokens = torch.zeros(1, 3, length, dtype=torch.long)
        return tokens, {"classes": get_task(name).labels or None}

    known: dict[str, Any] = {
        "imagenet": ((3, 224, 224), tuple(str(number) for number in range(1000)), IMAGENET),
        "imagenette": ((3, 224, 224), IMAGENETTE, IMAGENET),
        "cifar10": ((3, 32, 32), CLASSES, IMAGENET),
        "digits": ((1, 8, 8), tuple(str(digit) for digit in range(10)), HALF),
    }
    if name not in known:
        raise ExportError(f'surge export knows no input size for the data set "{name}".')
    shape, classes, normal = known[name]
    return torch.zeros(1, *shape), {"classes": classes, "preprocessing": _preprocessing(normal)}


def _accuracy(folder: RunFolder, epochs: int) -> float | None:
    """Return the test accuracy of the epoch that is packed, if it was measured."""
    rows = [row for row in folder.metrics() if row["epoch"] == epochs - 1]
    value = rows[-1].get("test_top1") if rows else None
    return None if value is None else float(value)


COMMAND = ("export", ExportCommand)
