"""Labels, and a method's own loss on what the last layer is given (BONN's feature loss)."""

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from surge.errors import ConfigError
from surge.layers.hooks import binary_layers
from surge.ranks import count_ranks, this_rank
from surge.train.distributed import World, wrapped
from surge.train.step import ImageObjective, cross_entropy


class _Watch:
    """Holds what the last layer was given in the forward that just ran."""

    def __init__(self, last: nn.Module) -> None:
        self.seen: Tensor | None = None

        # A plain function: copies of the model keep it as it is.
        def look(module: nn.Module, inputs: tuple[Tensor, ...]) -> None:
            self.seen = inputs[0] if module.training else None

        last.register_forward_pre_hook(look)

    def take(self) -> Tensor:
        """Return it, and keep nothing."""
        seen, self.seen = self.seen, None
        assert seen is not None
        return seen


class FeatureObjective(ImageObjective):
    """Cross-entropy of the logits plus the feature loss, whose own numbers are learned too."""

    def __init__(
        self, last: nn.Module, learned: nn.Module, smoothing: float, device: torch.device
    ) -> None:
        """``last`` is the layer whose input the features are."""
        super().__init__(cross_entropy(smoothing))
        self.learned = learned.to(device)
        self.watch = _Watch(last)
        # Centres are one for all processes: their gradients are exchanged like the model's.
        self.feature_loss = wrapped(self.learned, _world(), device)

    def outputs(self, network: nn.Module, inputs: Tensor) -> Any:
        """Return logits, features, and the loss for them.

        One process that measures alone has the bare model, and must not wait for the others.
        """
        logits = network(inputs)
        together = isinstance(network, DistributedDataParallel)
        return logits, self.watch.take(), self.feature_loss if together else self.learned

    def loss(self, outputs: Any, labels: Tensor, inputs: Tensor) -> Tensor:
        """Add the two losses."""
        logits, features, feature_loss = outputs
        drawn: Tensor = feature_loss(features, labels)
        return self.criterion(logits, labels, inputs) + drawn

    def hits(self, outputs: Any, labels: Tensor) -> Tensor:
        """Count largest logits that stand at the label."""
        return super().hits(outputs[0], labels)


def _world() -> World:
    return World(this_rank(), count_ranks())


def feature_objective(
    model: nn.Module, smoothing: float, device: torch.device
) -> FeatureObjective | None:
    """Return the objective of a model whose method has a feature loss; None for all others.

    Raises:
        ConfigError: such a model has no linear layer, so that nothing says what its features are.
    """
    linear = [module for module in model.modules() if isinstance(module, nn.Linear)]
    for name, layer in binary_layers(model):
        last = linear[-1] if linear else None
        sizes = (1, 1) if last is None else (last.out_features, last.in_features)
        learned = layer.method.feature_loss(*sizes)
        if learned is None:
            return None
        if last is None:
            raise ConfigError(
                f'The method of "{name}" has a loss on the features before the last linear layer, '
                "and this model has no linear layer. Leave it out with feature_strength=0."
            )
        return FeatureObjective(last, learned, smoothing, device)
    return None
