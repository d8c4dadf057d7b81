"""What a training loop owes to the methods inside a model: three calls."""

from collections.abc import Iterator

import torch
from torch import Tensor, nn

from surge.errors import ConfigError, UnsupportedLayerError
from surge.layers.base import BinaryLayer
from surge.method import Method


def binary_layers(model: nn.Module) -> Iterator[tuple[str, BinaryLayer]]:
    """Yield every binary layer of a model with its name, shared ones once."""
    for name, module in model.named_modules():
        if isinstance(module, BinaryLayer):
            yield name, module


def on_epoch(model: nn.Module, epoch: int, epochs: int) -> None:
    """Set all schedules (ReCU's tau, IR-Net's k and t, a decaying dose) for this epoch.

    Epochs count from 0; whoever trains on beyond ``epochs`` stays at the end of the schedules.
    """
    if epochs < 1 or epoch < 0:
        raise ConfigError(
            f"on_epoch: epoch={epoch}, epochs={epochs}; epochs count from 0, one at least."
        )
    epoch = min(epoch, epochs)
    for _, layer in binary_layers(model):
        layer.duties.done("on_epoch")
        layer.method.on_epoch(epoch, epochs)
        layer.method.adapt(layer.weight)
        if layer.auxiliary is not None:
            layer.auxiliary.on_epoch(epoch, epochs)


def on_step(model: nn.Module) -> None:
    """Let methods act on their latent weights after an optimizer step (BNN clamps them)."""
    for name, layer in binary_layers(model):
        layer.duties.done("on_step")
        weight = layer.weight
        if isinstance(weight, nn.Parameter):
            layer.method.on_step(weight)
        else:
            _act_on_made(name, layer.method, weight)


def _act_on_made(name: str, method: Method, weight: Tensor) -> None:
    """Let a method act where the weight is made anew in every forward, or say that it cannot."""
    before = weight._version
    method.on_step(weight)  # type: ignore[arg-type]
    if weight._version != before:
        raise UnsupportedLayerError(
            f'on_step: {method.name} changes the weight of "{name}" after a step, which pruning or '
            "a parametrization makes anew in every forward, so that this would be lost; make it "
            "a plain parameter first (prune.remove, parametrize.remove_parametrizations)."
        )


def extra_loss(model: nn.Module) -> Tensor | float:
    """Return what methods want to add to the loss of the last forward; 0 where none wants to.

    Losses of layers are summed or averaged as their method wants; alignment losses are averaged.
    """
    summed: list[Tensor] = []
    averaged: list[Tensor] = []
    aligned: list[Tensor] = []
    for _, layer in binary_layers(model):
        layer.duties.done("extra_loss")
        term = layer.method.extra_loss(layer.weight)
        if term is not None:
            (averaged if layer.method.averages_extra_loss else summed).append(term)
        extra = None if layer.auxiliary is None else layer.auxiliary.extra_loss()
        if extra is not None:
            aligned.append(extra)
    means = [torch.stack(terms).mean() for terms in (averaged, aligned) if terms]
    parts = [*summed, *means]
    return torch.stack(parts).sum() if parts else 0.0
