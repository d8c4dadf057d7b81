"""The delivered dose: how much of the injected gradient is left behind the clamp just below.

With p the input of the Hardtanh that feeds a layer (or of the layer itself where nothing clamps),
G the gradient at the layer's output, and both paths differentiated down to p::

    delivered = |aux^T G at p| / |main^T G at p|

The Hardtanh passes nothing where it is saturated, so a dose of eta at the layer's sign arrives as
less than eta here. One training batch in eager mode; nothing that training uses is changed.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from surge.compensation import Compensation
from surge.compensation.auxiliary import AuxiliaryPath
from surge.compensation.dry_run import dry_run, restored
from surge.layers.base import BinaryLayer
from surge.layers.hooks import binary_layers

if TYPE_CHECKING:
    from surge.train.loop import Trainer


class DoseMeter:
    """Measures the delivered dose of every compensated layer of a model."""

    def __init__(self, model: nn.Module, compensation: Compensation, example: Tensor) -> None:
        """Find out which clamp feeds which layer, with one dry run on ``example``."""
        layers = dict(binary_layers(model))
        self.model = model
        self.layers = {name: layers[name] for name in compensation.paths}
        seen = dry_run(model, self.layers, example)
        self.clamps = {
            name: _own_clamp(layer) or seen[name].clamp for name, layer in self.layers.items()
        }

    def measure(self, loss_of: Callable[[], Tensor]) -> dict[str, float]:
        """Return the delivered dose by layer, for the batch whose loss ``loss_of`` computes."""
        with undisturbed(self.model):
            self.model.train()
            points, outputs = self._run(loss_of)
            found = {
                name: delivered_share(layer, self.clamps[name], points[name], outputs[name])
                for name, layer in self.layers.items()
                if name in outputs
            }
        return {name: float(share) for name, share in found.items()}

    def _run(self, loss_of: Callable[[], Tensor]) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        """Return p and G of every layer that took part."""
        points: dict[str, Tensor] = {}
        outputs: dict[str, Tensor] = {}
        handles = []
        for name, layer in self.layers.items():
            source: nn.Module = self.clamps[name] or layer

            def note(_module: nn.Module, args: Any, name: str = name) -> None:
                points[name] = args[0].detach()

            def keep(_module: nn.Module, _args: Any, output: Tensor, name: str = name) -> None:
                outputs[name] = output

            handles += [source.register_forward_pre_hook(note), layer.register_forward_hook(keep)]
        try:
            loss = loss_of()
        finally:
            for handle in handles:
                handle.remove()
        # Asked for by name, so that neither parameters nor probes collect anything.
        gradients = torch.autograd.grad(loss, list(outputs.values()), allow_unused=True)
        reached = zip(outputs, gradients, strict=True)
        return points, {name: grad for name, grad in reached if grad is not None}


def _own_clamp(layer: BinaryLayer) -> nn.Hardtanh | None:
    """Return the clamp above which the path injects; a dry run does not see recording ones."""
    path = layer.auxiliary
    return path.clamp[0] if isinstance(path, AuxiliaryPath) and path.clamp else None


def delivered_share(
    layer: BinaryLayer, clamp: nn.Hardtanh | None, point: Tensor, gradient: Tensor
) -> Tensor:
    """Return what is left of the injected gradient below the clamp, over the main one's norm."""
    # In the weight's precision: the difference below is a hundredth of its terms.
    p = point.to(layer.weight.dtype).requires_grad_()
    gradient = gradient.to(layer.weight.dtype)
    with torch.enable_grad():
        x = p if clamp is None else clamp(p)
        (both,) = torch.autograd.grad(layer(x), p, gradient)
        x = p if clamp is None else clamp(p)
        main_output = layer.respond(layer.method.prepare_input(x))
        (main,) = torch.autograd.grad(main_output, p, gradient)
    norm = torch.linalg.vector_norm
    ratio: Tensor = norm(both - main) / norm(main).clamp(min=1e-30)
    return ratio


@contextmanager
def undisturbed(model: nn.Module) -> Iterator[None]:
    """Put buffers, modes and random numbers back as they were; paths forget the forward."""
    paths = [m for m in model.modules() if isinstance(m, AuxiliaryPath)]
    forwards = [path.forwards for path in paths]
    devices = {buffer.device for buffer in model.buffers() if buffer.device.type == "cuda"}
    try:
        with restored(model), torch.random.fork_rng(list(devices)):
            yield
    finally:
        for path, count in zip(paths, forwards, strict=True):
            path.forwards = count
            path.forget()


def mean_dose(trainer: "Trainer") -> dict[str, float]:
    """Return the mean delivered dose over the layers, in the epochs when it is measured."""
    spec, meter = trainer.recipe.train, trainer.meter
    last = trainer.epoch + 1 == spec.epochs
    if meter is None or not (last or trainer.epoch % trainer.options.dose_every == 0):
        return {}
    part, _ = next(trainer.batches())
    part = part.part(0, -(-len(part) // spec.accumulate))
    # The bare model: the other ranks take no part in this.
    doses = meter.measure(lambda: trainer.train_step.compute(trainer.parts.model, part)[0])
    return {"delivered": sum(doses.values()) / len(doses)}
