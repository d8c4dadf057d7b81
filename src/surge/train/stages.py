"""Training in two stages on images: the second begins with the weights of the first."""

from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from surge.errors import CheckpointMismatchError, ConfigError
from surge.recipes.placing import start_of, teacher_of
from surge.recipes.recipe import Recipe
from surge.train import checkpoint
from surge.train.run import RunFolder

THRESHOLD = "conv.method.shift"
MOVED = "move.shift"
"""A threshold of RSign is part of a method, or of the network where its method has none."""


def finished_state(path: Path, role: str) -> tuple[Recipe, dict[str, Tensor]]:
    """Return the recipe and the weights of a finished run.

    Raises:
        CheckpointMismatchError: not a run, or not finished.
    """
    folder, recipe, _ = RunFolder.open(path)
    state, _ = checkpoint.load_newest(folder.checkpoints, recipe.name, torch.device("cpu"))
    if state["epoch"] < recipe.train.epochs:
        raise CheckpointMismatchError(
            f"The {role} in {path} stopped after epoch {state['epoch']} of {recipe.train.epochs}. "
            f"Finish it with: surge train --resume {path}"
        )
    weights: dict[str, Tensor] = state["model"]
    return recipe, weights


def check_unseen(recipe: Recipe, other: Recipe, where: str) -> None:
    """Refuse another run, named by ``where``, that was trained on what this recipe holds out."""
    if recipe.data.held_out and not other.data.held_out:
        raise ConfigError(
            f"{where} was trained on what {recipe.name} holds out: train it with --held-out too."
        )


def first_stage(recipe: Recipe) -> dict[str, Tensor]:
    """Return the weights that a second stage begins with; no other run's are accepted."""
    path = Path(recipe.model.options["start"])
    wanted = start_of(recipe)
    first, state = finished_state(path, "first stage")
    if first.name != wanted or first.data.name != recipe.data.name:
        raise CheckpointMismatchError(
            f"{path} holds {first.name}, which is no first stage for {recipe.name}: train one "
            f"with `surge train {wanted}` and name its folder with --start."
        )
    check_unseen(recipe, first, f"The first stage in {path}")
    return state


@torch.no_grad()
def start_from_(model: nn.Module, recipe: Recipe) -> None:
    """Copy the first stage's weights into a network, in place.

    What only the second stage has (scales of its method) stays as drawn. A start that is None
    leaves all as drawn.
    """
    path = recipe.model.options["start"]
    if path is None:
        return
    own = model.state_dict()
    for name, tensor in first_stage(recipe).items():
        place = name if name in own else name.replace(THRESHOLD, MOVED)
        if place not in own or own[place].shape != tensor.shape:
            raise CheckpointMismatchError(
                f'The first stage in {path} does not fit {recipe.name}: "{name}" '
                f"{list(tensor.shape)} has no place there."
            )
        own[place].copy_(tensor)


def teacher_state(recipe: Recipe) -> tuple[str, dict[str, Any]]:
    """Return the architecture and the weights of a recipe's teacher.

    The teacher is the run of a float network, or a file with torchvision's weights.
    """
    assert recipe.distill is not None
    path = Path(recipe.distill.teacher)
    if path.is_file():
        return _file_state(path)
    taught, state = finished_state(path, "teacher")
    if taught.method is not None or taught.data.name != recipe.data.name:
        raise CheckpointMismatchError(
            f"{path} holds {taught.name}, which is no float teacher for {recipe.data.name}: train "
            f"one with `surge train {teacher_of(recipe)}` and name its folder with --teacher."
        )
    check_unseen(recipe, taught, f"The teacher in {path}")
    return taught.model.name, state


def _file_state(path: Path) -> tuple[str, dict[str, Any]]:
    try:
        state = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # unpickling foreign bytes can fail in any way
        raise CheckpointMismatchError(
            f"--teacher {path} is not a file of weights: {type(error).__name__}."
        ) from error
    known = isinstance(state, dict) and "layer1.0.conv1.weight" in state and "fc.weight" in state
    if not known or "layer1.0.conv3.weight" in state:
        raise CheckpointMismatchError(
            f"--teacher {path} holds no ResNet-18 or ResNet-34 with torchvision's names."
        )
    return "resnet34" if "layer1.2.conv1.weight" in state else "resnet18", state
