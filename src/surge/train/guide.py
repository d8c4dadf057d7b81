"""What a smooth network tells an auxiliary path during a run: a sign, or what is missing.

Between steps, and in eager mode, the gradient of one batch (of its first part, where gradients are
accumulated) is compared with that of the same network with tanh in the place of every sign, see
:mod:`surge.compensation.reference`. A captured step reads what comes out of that at its next
replay.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from torch import Tensor

from surge.compensation.reference import Loss, calibrate_, learn_bias_
from surge.errors import ConfigError

if TYPE_CHECKING:
    from surge.data import EpochPlan
    from surge.train.loop import Trainer

SIGN_EVERY, BIAS_EVERY = 100, 10
"""Steps from one look at the smooth network to the next. A look takes as long as a few steps."""


def make_guide(trainer: Trainer) -> Guide | None:
    """Return the guide that a recipe asks for, if it does."""
    options = trainer.recipe.surge
    if options is None or not (options.signed or options.objective == "bias"):
        return None
    if not trainer.task.measurable:
        raise ConfigError(
            f'{trainer.recipe.row}: signed= and objective="bias" compare with a smooth network, '
            "which is made for networks that classify images."
        )
    return Guide(trainer)


class Guide:
    """Looks at a smooth network after every so many steps; on all ranks together."""

    def __init__(self, trainer: Trainer) -> None:
        """Guide the paths of a trainer's model."""
        self.trainer = trainer
        surge = trainer.recipe.surge
        assert surge is not None
        self.signs, self.bias = surge.signed, surge.objective == "bias"

    def after_step(self, number: int, part: EpochPlan) -> None:
        """Look, if it is time; ``number`` counts the steps of the run, ``part`` was the batch."""
        trainer = self.trainer
        compensation = trainer.parts.compensation
        assert compensation is not None
        size = -(-len(part) // trainer.recipe.train.accumulate)
        first = part.part(0, size)

        def loss() -> Tensor:
            return trainer.train_step.compute(trainer.parts.model, first)[0]

        if self.signs and number % SIGN_EVERY == 0:
            calibrate_(trainer.parts.model, compensation, loss)
        if self.bias and number % BIAS_EVERY == 0:
            self._learn(loss)

    def _learn(self, loss: Loss) -> None:
        """Let the optimizer do a step for the auxiliary weights alone."""
        parts = self.trainer.parts
        assert parts.compensation is not None
        held = [(p, p.grad) for group in parts.optimizer.param_groups for p in group["params"]]
        for parameter, _ in held:
            parameter.grad = None
        learn_bias_(parts.model, parts.compensation, loss)
        parts.optimizer.step()
        for parameter, gradient in held:
            parameter.grad = gradient
