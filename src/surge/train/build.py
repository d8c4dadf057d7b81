"""From a recipe to the objects that train: data, model, auxiliary paths, optimizer."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from surge.compensation import Compensation, compensate_
from surge.convert import binarize_
from surge.data import Augmentation, ImageSet, ResidentLoader, hold_out, load_cifar10, load_digits
from surge.data.folders import FileSet
from surge.data.textset import TextSet
from surge.layers.hooks import binary_layers
from surge.models import build_model
from surge.recipes.recipe import DataSpec, Recipe, TrainSpec
from surge.train import photos, stages, text
from surge.train.distributed import World

Sets = tuple[ImageSet, ImageSet] | tuple[FileSet, FileSet] | tuple[TextSet, TextSet]
"""What is trained on and what is tested on."""


@dataclass(frozen=True)
class Parts:
    """What a training loop needs, on its device."""

    model: nn.Module
    compensation: Compensation | None
    optimizer: torch.optim.Optimizer


def load_sets(spec: DataSpec, root: Path) -> Sets:
    """Return the images or sentences to train on and those to test on."""
    if spec.length is not None:
        return text.load_text_sets(spec, root)
    if spec.size is not None:
        return photos.load_photo_sets(spec, root)
    if spec.name == "digits":
        train, test = load_digits("train"), load_digits("test")
    else:
        train = load_cifar10(root, "train")
        test = train if spec.held_out else load_cifar10(root, "test")
    if spec.held_out:
        train, test = hold_out(train)
    if spec.limit is not None:
        train, test = (s.subset(torch.arange(min(spec.limit, len(s)))) for s in (train, test))
    return train, test


def make_loaders(
    recipe: Recipe, sets: Sets, seed: int, device: torch.device, world: World
) -> tuple[ResidentLoader, ResidentLoader]:
    """Put both sets on the device; all arms of one seed see the same order and crops."""
    if isinstance(sets[0], TextSet):
        return text.make_text_loaders(recipe, sets, seed, device, world)
    dtype = compute_dtype(recipe.train, device)
    if recipe.data.size is not None:
        return photos.make_photo_loaders(recipe, sets, seed, device, world, dtype)
    assert isinstance(sets[0], ImageSet) and isinstance(sets[1], ImageSet)
    layout = torch.channels_last if device.type == "cuda" else torch.contiguous_format
    train = ResidentLoader(
        sets[0],
        batch_size=min(recipe.train.batch, len(sets[0])),
        device=device,
        seed=seed,
        shuffle=True,
        augmentation=Augmentation() if recipe.data.augment else None,
        drop_last=recipe.train.drop_last,
        rank=world.rank,
        world=world.size,
        dtype=dtype,
        memory_format=layout,
    )
    test = ResidentLoader(
        sets[1],
        batch_size=2500 if device.type == "cuda" else 500,
        device=device,
        rank=world.rank,
        world=world.size,
        dtype=dtype,
        memory_format=layout,
    )
    return train, test


def compute_dtype(spec: TrainSpec, device: torch.device) -> torch.dtype:
    """Return the dtype of activations: bf16 only where the recipe and the device have it."""
    return torch.bfloat16 if device.type == "cuda" and spec.precision == "bf16" else torch.float32


def build_network(
    recipe: Recipe, seed: int, example: torch.Tensor
) -> tuple[nn.Module, Compensation | None]:
    """Build the model on the CPU; its own weights depend on the seed alone, not on SURGE."""
    if recipe.model.name == "bert":
        return text.build_bert(recipe, seed, example)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        options = {k: v for k, v in recipe.model.options.items() if k != "start"}
        model = build_model(recipe.model.name, **options)
        if recipe.method is not None:
            method = recipe.method
            binarize_(model, method.name, skip=method.skip, **method.options)
    if "start" in recipe.model.options:
        stages.start_from_(model, recipe)
    compensation = None
    if recipe.surge is not None:
        fields = {**vars(recipe.surge), "seed": seed}
        compensation = compensate_(model, **fields, example_input=example)
    return model, compensation


def build_parts(recipe: Recipe, seed: int, device: torch.device, example: torch.Tensor) -> Parts:
    """Build model and optimizer on their device, ready for the first step or for a checkpoint."""
    model, compensation = build_network(recipe, seed, example)
    layout = torch.channels_last if device.type == "cuda" else torch.contiguous_format
    model.to(device=device, memory_format=layout)  # type: ignore[call-overload]
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
