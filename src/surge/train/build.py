"""From a recipe to the objects that train: data, model, auxiliary paths, optimizer."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import nn

from surge.compensation import Compensation
from surge.data import ImageSet, ResidentLoader
from surge.data.folders import FileSet
from surge.data.textset import TextSet
from surge.data.voc_loader import DecodedSet
from surge.errors import CheckpointMismatchError
from surge.layers.hooks import binary_layers
from surge.recipes.recipe import DataSpec, Recipe, TrainSpec
from surge.train.distributed import World
from surge.train.parts import Parts, Place, compute_dtype, layout_on
from surge.train.task import task_of
from surge.train.text import build as text

__all__ = [
    "Parts",
    "Sets",
    "alone",
    "build_network",
    "build_parts",
    "compute_dtype",
    "for_own_checkpoint",
    "load_sets",
    "load_trained_",
    "make_loaders",
    "make_optimizer",
    "parameter_groups",
    "set_learning_rate",
]

Sets = (
    tuple[ImageSet, ImageSet]
    | tuple[FileSet, FileSet]
    | tuple[TextSet, TextSet]
    | tuple[DecodedSet, DecodedSet]
)
"""What is trained on and what is tested on."""


def load_sets(spec: DataSpec, root: Path, workers: int | None = None) -> Sets:
    """Return the images or sentences to train on and those to test on.

    So many ``workers`` decode image files; by default as many as there are cores.
    """
    sets: Sets = task_of(spec).load_sets(spec, root, workers)
    return sets


def make_loaders(
    recipe: Recipe,
    sets: Sets,
    seed: int,
    device: torch.device,
    world: World,
    *,
    workers: int | None = None,
) -> tuple[ResidentLoader, ResidentLoader]:
    """Put both sets on the device; all arms of one seed see the same order and crops."""
    dtype = compute_dtype(recipe.train, device)
    place = Place(device, world.rank, world.size, dtype, layout_on(device), workers)
    return task_of(recipe.data).make_loaders(recipe, sets, seed, place)


def build_network(recipe: Recipe, seed: int, example: Any) -> tuple[nn.Module, Compensation | None]:
    """Build the model on the CPU; its own weights depend on the seed alone, not on SURGE."""
    return task_of(recipe.data).build_network(recipe, seed, example)


def alone(recipe: Recipe) -> Recipe:
    """Return a recipe whose network is built for the weights of a checkpoint.

    It has no auxiliary paths, and no run that it learnt from or began with is needed.
    """
    return replace(_unstarted(recipe), surge=None, distill=None)


def for_own_checkpoint(recipe: Recipe) -> Recipe:
    """Return a recipe whose run can go on without the one it began with, where that is possible.

    A detector takes more from that than weights, and layers chosen by saliency depend on them.
    """
    chosen = recipe.surge is not None and recipe.surge.chosen == "saliency"
    return recipe if chosen or recipe.data.name == "voc" else _unstarted(recipe)


def _unstarted(recipe: Recipe) -> Recipe:
    options = recipe.model.options
    if "start" not in options:
        return recipe
    return replace(recipe, model=replace(recipe.model, options={**options, "start": None}))


def load_trained_(model: nn.Module, state: dict[str, Any], recipe: Recipe, where: Path) -> None:
    """Take the weights of a checkpoint, but for auxiliary ones, in place; see :func:`alone`.

    Raises:
        CheckpointMismatchError: they are those of another network.
    """
    try:
        kept = {name: t for name, t in state["model"].items() if ".auxiliary." not in name}
        model.load_state_dict(kept)
    except (RuntimeError, KeyError) as error:
        raise CheckpointMismatchError(
            f"The checkpoint in {where} does not fit the model of {recipe.name}: {error}"
        ) from error


def build_parts(recipe: Recipe, seed: int, device: torch.device, example: Any) -> Parts:
    """Build model and optimizer on their device, ready for the first step or for a checkpoint."""
    model, compensation = build_network(recipe, seed, example)
    model.to(device=device, memory_format=layout_on(device))  # type: ignore[call-overload]
    optimizer = make_optimizer(model, recipe.train, device)
    if compensation is not None:
        compensation.follow(optimizer)
    return Parts(model, compensation, optimizer)


def parameter_groups(model: nn.Module, spec: TrainSpec) -> list[dict[str, Any]]:
    """Return the optimizer's groups: all parameters in one, except those whose method objects.

    ``lr_factor`` stays in a group, so that the schedule finds it there.
    """
    wishes: dict[int, tuple[float, bool]] = {}
    for _, layer in binary_layers(model):
        method = layer.method
        for name in {*method.lr_factors, *method.undecayed}:
            parameter = getattr(method, name)
            if parameter is not None:
                factor = method.lr_factors.get(name, 1.0)
                wishes[id(parameter)] = (factor, name not in method.undecayed)
    groups: dict[tuple[float, bool], list[nn.Parameter]] = {(1.0, True): []}
    for name, parameter in model.named_parameters():
        factor, decays = wishes.get(id(parameter), (1.0, True))
        decays = decays and is_decayed(name, parameter, spec)
        groups.setdefault((factor, decays), []).append(parameter)
    return [
        {
            "params": parameters,
            "lr_factor": factor,
            "weight_decay": spec.weight_decay if decays else 0.0,
        }
        for (factor, decays), parameters in groups.items()
    ]


def is_decayed(name: str, parameter: nn.Parameter, spec: TrainSpec) -> bool:
    """Return whether a recipe's rule lets weight decay act on a parameter.

    ``kernels`` is the rule of ReActNet's code: four dimensions, or "conv" in the name. Shifts of
    RSign and RPReLU have four there, and one here.
    """
    if spec.decayed == "kernels":
        shift = name.rpartition(".")[2] in ("shift", "shift_in", "shift_out")
        return parameter.dim() == 4 or "conv" in name or shift
    if spec.decayed == "conv_fc":
        return "conv" in name or "fc" in name
    return True


def make_optimizer(
    model: nn.Module, spec: TrainSpec, device: torch.device
) -> torch.optim.Optimizer:
    """Return the optimizer; on a GPU learning rates are tensors that a captured step reads."""
    if spec.optimizer == "bertadam":
        return text.make_bertadam(model, spec, device)
    on_gpu = device.type == "cuda"
    groups = parameter_groups(model, spec)
    for group in groups:
        rate = spec.lr * group["lr_factor"]
        group["lr"] = torch.tensor(rate, device=device) if on_gpu else rate
    if spec.optimizer == "sgd":
        return torch.optim.SGD(groups, momentum=spec.momentum, nesterov=spec.nesterov, fused=on_gpu)
    return torch.optim.Adam(groups, fused=on_gpu, capturable=on_gpu)


def set_learning_rate(optimizer: torch.optim.Optimizer, value: float) -> None:
    """Set the learning rate of every group in place, so that a captured step sees it."""
    for group in optimizer.param_groups:
        rate = value * group.get("lr_factor", 1.0)
        if isinstance(group["lr"], torch.Tensor):
            group["lr"].fill_(rate)
        else:
            group["lr"] = rate
