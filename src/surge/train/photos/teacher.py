"""The distribution loss of ReActNet: a student on images learns the outputs of a float network."""

from typing import Any

import torch
from torch import Tensor, nn

from surge.errors import CheckpointMismatchError
from surge.models import build_model
from surge.recipes.recipe import Recipe
from surge.train.parts import layout_on
from surge.train.stages import teacher_state


def distribution_loss(student: Tensor, teacher: Tensor) -> Tensor:
    """Return the mean over the batch of ``-sum_c softmax(t)_c log_softmax(s)_c``."""
    shares = teacher.float().softmax(dim=1)
    return -(shares * student.float().log_softmax(dim=1)).sum(dim=1).mean()


class DistributionObjective:
    """What a step with a teacher minimises; labels only count hits."""

    def __init__(self, teacher: nn.Module) -> None:
        """``teacher`` is frozen, and stays in eval mode."""
        self.teacher = teacher.eval().requires_grad_(False)

    def outputs(self, network: nn.Module, inputs: Tensor) -> Any:
        """Return the logits of both."""
        with torch.no_grad():
            taught = self.teacher(inputs)
        return network(inputs), taught

    def loss(self, outputs: Any, labels: Tensor, inputs: Tensor) -> Tensor:
        """Compare the two distributions."""
        return distribution_loss(*outputs)

    def hits(self, outputs: Any, labels: Tensor) -> Tensor:
        """Count the student's largest logits that stand at the label."""
        right: Tensor = outputs[0].argmax(dim=1) == labels
        return right.sum()


def checked_teacher(recipe: Recipe) -> tuple[str, dict[str, Any]]:
    """Return the architecture and the weights of a teacher that knows the student's classes."""
    name, state = teacher_state(recipe)
    classes = recipe.model.options.get("classes", 1000)
    found = len(state["fc.weight"])
    if found != classes:
        raise CheckpointMismatchError(
            f"The teacher of {recipe.name} knows {found} classes, the student has {classes}."
        )
    return name, state


def teacher_objective(recipe: Recipe, device: torch.device) -> DistributionObjective:
    """Return the objective of a recipe with a teacher, who is put on the device."""
    name, state = checked_teacher(recipe)
    teacher = build_model(name, classes=len(state["fc.weight"]))
    teacher.load_state_dict(state)
    return DistributionObjective(teacher.to(device=device, memory_format=layout_on(device)))  # type: ignore[call-overload]
