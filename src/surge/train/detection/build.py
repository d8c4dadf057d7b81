"""From a recipe of VOC to its detector: float, or a student that begins with another run."""

import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from surge.convert import binarize_
from surge.errors import CheckpointMismatchError, SurgeWarning
from surge.functional import sign
from surge.layers.hooks import binary_layers
from surge.method import mean_magnitude
from surge.methods.ida import IDa
from surge.methods.rbonn import UNIT
from surge.models.detector import (
    Detector,
    detector_scope,
    float_detector,
    load_body_,
    reactnet_detector,
)
from surge.models.detector_parts import DetectorSettings
from surge.recipes.recipe import Recipe
from surge.recipes.voc import TEACHER, start_of
from surge.train.stages import check_unseen, finished_state

SETTINGS = DetectorSettings()
FROZEN = 1
"""Stages of a pretrained backbone that stay as they came, with the stem before them."""
BODY = "backbone.body."
AROUND = 0.1
"""Share of its own drawn weights that a 3x3 kernel keeps around a 1x1 kernel that it takes over."""


def build_detector(recipe: Recipe, seed: int) -> Detector:
    """Build a detector on the CPU, with the weights it begins with, binary where its recipe says.

    Where a pretrained backbone came in, the stem and the first stage stay as they are, and norms
    keep their statistics.
    """
    options = recipe.model.options
    start = options.get("start")
    begun = None if start is None else _begun(recipe, Path(start))
    pretrained = bool(options.get("backbone")) or (
        begun is not None and _stands_on_pretrained(begun[0])
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        floats = begun[1] if begun is not None and begun[0].method is None else None
        model = new_detector(recipe, pretrained=pretrained, floats=floats)
    if begun is not None and begun[0].method is not None:
        _take_stage_(model, begun[1], recipe, str(start))
    fit_scales_(model, learned=begun[1] if begun is not None else {})
    if options.get("backbone"):
        load_body_(model, backbone_state(Path(options["backbone"])))
    model.freeze_()
    return model


def new_detector(
    recipe: Recipe, *, pretrained: bool = False, floats: Mapping[str, Tensor] | None = None
) -> Detector:
    """Return a recipe's detector as drawn, or with the weights of a float one before it is binary.

    What is ``pretrained`` is frozen in part.
    """
    frozen: dict[str, Any] = {"frozen": FROZEN if pretrained else 0, "norm_eval": pretrained}
    if recipe.method is None:
        return float_detector(settings=SETTINGS, **frozen)
    weight = recipe.model.options["losses"]
    model = reactnet_detector(settings=SETTINGS, loss_weight=weight, **frozen)
    if floats is not None:
        take_float_(model, floats)
    _binarize_(model, recipe)
    return model


def _binarize_(model: Detector, recipe: Recipe) -> None:
    method = recipe.method
    assert method is not None
    stage = "backbone" if recipe.model.options["binary"] == "backbone" else "whole"
    with warnings.catch_warnings():
        # Pyramid and heads have no norms: that is how the network is.
        warnings.simplefilter("ignore", SurgeWarning)
        binarize_(
            model,
            method.name,
            only=detector_scope(stage),
            skip=method.skip,
            **method.options,
        )


def _begun(recipe: Recipe, path: Path) -> tuple[Recipe, dict[str, Tensor]]:
    """Return the finished run that a recipe begins with; no other is accepted."""
    wanted = start_of(recipe)
    first, state = finished_state(path, "first stage" if wanted != TEACHER else "float detector")
    if first.name != wanted:
        raise CheckpointMismatchError(
            f"{path} holds {first.name}, with which {recipe.name} does not begin: train "
            f"`surge train {wanted}` and name its folder with --start."
        )
    check_unseen(recipe, first, f"The run in {path}")
    return first, state


def _stands_on_pretrained(first: Recipe) -> bool:
    """Return whether a first stage had a pretrained 1-bit backbone.

    That of a float detector is another matter: its bits would never have been trained.
    """
    return first.method is not None and bool(first.model.options.get("backbone"))


@torch.no_grad()
def take_float_(model: Detector, state: Mapping[str, Tensor]) -> None:
    """Copy a float detector into a student that is not binary yet, in place.

    Its backbone goes where its convolutions have a place. Around it the student begins as the same
    function: 1x1 laterals stand in the middle of 3x3 ones, PReLUs are what stood there before.
    """
    body = {n.removeprefix(BODY): t for n, t in state.items() if n.startswith(BODY)}
    load_body_(model, body)
    own = model.state_dict()
    for name, tensor in state.items():
        if name.startswith(BODY) or name not in own:
            continue
        if own[name].shape == tensor.shape:
            own[name].copy_(tensor)
        elif tensor.dim() == 4 and tensor.shape[2:] == (1, 1):
            own[name].mul_(AROUND)[:, :, 1, 1] = tensor[:, :, 0, 0]
    for acts in (model.backbone.fpn.lateral_acts, model.backbone.fpn.output_acts):
        for act in acts:
            _bend_(act, 1.0)
    _bend_(model.rpn.head.act, 0.0)


def _bend_(act: nn.Module, slope: float) -> None:
    if isinstance(act, nn.PReLU):
        act.weight.fill_(slope)


@torch.no_grad()
def _take_stage_(model: Detector, state: Mapping[str, Tensor], recipe: Recipe, where: str) -> None:
    """Copy a first stage into the second, in place; its auxiliary weights stay behind."""
    own = model.state_dict()
    for name, tensor in state.items():
        if ".auxiliary." in name:
            continue
        if name not in own or own[name].shape != tensor.shape:
            raise CheckpointMismatchError(
                f'The first stage in {where} does not fit {recipe.name}: "{name}" '
                f"{list(tensor.shape)} has no place there."
            )
        own[name].copy_(tensor)


@torch.no_grad()
def fit_scales_(model: Detector, learned: Mapping[str, Tensor]) -> None:
    """Let scales of IDa-Det's layers that are not ``learned`` yet begin with their weights' size.

    Drawn from N(0, 1), as its authors do, they would undo what layers without a norm have learned.
    """
    for name, layer in binary_layers(model):
        if isinstance(layer.method, IDa) and f"{name}.method.scale" not in learned:
            size = mean_magnitude(layer.weight).flatten() / UNIT
            layer.method.scale.copy_(sign(layer.method.scale) * size)


def backbone_state(path: Path) -> dict[str, Tensor]:
    """Return the weights of a pretrained ResNet-18: a finished run, or a file of weights.

    Raises:
        CheckpointMismatchError: neither of both.
    """
    if path.is_dir():
        _, state = finished_state(path, "backbone")
        return state
    try:
        if path.suffix == ".safetensors":
            from safetensors.torch import load_file

            return dict(load_file(path))
        state = torch.load(path, map_location="cpu", weights_only=True)
    except FileNotFoundError as error:
        raise CheckpointMismatchError(f"--backbone {path} is not there.") from error
    except Exception as error:  # reading foreign bytes can fail in any way
        raise CheckpointMismatchError(
            f"--backbone {path} is not a file of weights: {type(error).__name__}."
        ) from error
    if not isinstance(state, dict) or not any(isinstance(v, Tensor) for v in state.values()):
        raise CheckpointMismatchError(f"--backbone {path} holds no weights by name.")
    return {name: value.float() for name, value in state.items() if isinstance(value, Tensor)}


def build_teacher(recipe: Recipe) -> Detector | None:
    """Return the float detector that a student learns from, if its recipe has one."""
    if recipe.distill is None:
        return None
    path = Path(recipe.distill.teacher)
    taught, state = finished_state(path, "teacher")
    if taught.name != TEACHER:
        raise CheckpointMismatchError(
            f"{path} holds {taught.name}, which is no float teacher for {recipe.name}: train one "
            f"with `surge train {TEACHER}` and name its folder with --teacher."
        )
    check_unseen(recipe, taught, f"The teacher in {path}")
    with torch.random.fork_rng(devices=[]):
        teacher = float_detector(settings=SETTINGS)
    teacher.load_state_dict(state)
    return teacher
