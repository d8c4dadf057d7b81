"""SURGE as the paper prints it, for comparison: nothing is avoided, fused or kept on the device.

Every compensated layer computes ``f_b - stop(f_ao) + f_ao`` with ``f_ao = scale * f_a(z)``, so the
auxiliary forward is paid although it adds zero; the two gradients at the input are caught by
hooks, and the new scale is read back to the host after every step.
"""

import math
from collections.abc import Callable

import torch
from torch import Tensor, nn

from surge.layers.base import Auxiliary, BinaryLayer
from surge.layers.hooks import binary_layers

ETA, EPSILON = 0.01, 1e-8


class LiteralPath(Auxiliary):
    """A full-precision copy of the layer's operator beside it."""

    def __init__(self, layer: BinaryLayer, eta: float) -> None:
        super().__init__()
        self.eta = eta
        self.weight = nn.Parameter(torch.empty_like(layer.weight))
        nn.init.kaiming_normal_(self.weight)
        self.scale = 1 / math.sqrt(self.weight.numel())
        self.main_norm = self.auxiliary_norm = None

    def forward(self, layer: BinaryLayer, x: Tensor) -> Tensor:
        """Run both paths; the hooks see what comes back through each."""
        z = layer.method.prepare_input(x)
        main, auxiliary = z.clone(), z.clone()
        main.register_hook(self._saw_main)
        auxiliary.register_hook(self._saw_auxiliary)
        f_b = layer.operate(layer.method.binarize(main), main)
        f_ao = self.scale * layer.multiply(auxiliary, self.weight)
        return f_b - f_ao.detach() + f_ao

    def _saw_main(self, grad: Tensor) -> None:
        self.main_norm = grad.float().norm()

    def _saw_auxiliary(self, grad: Tensor) -> None:
        self.auxiliary_norm = grad.float().norm()

    def renew(self) -> None:
        """Set the scale for the next step; what came back was ``scale * g_a``."""
        if self.main_norm is None or self.auxiliary_norm is None:
            return
        main, scaled = self.main_norm.item(), self.auxiliary_norm.item()
        if main and scaled:  # a scale of zero could never be divided out again
            self.scale = self.eta * main / (scaled / self.scale + EPSILON)


def compensate_literally_(
    model: nn.Module,
    optimizer_of: Callable[[nn.Module], torch.optim.Optimizer],
    *,
    eta: float = ETA,
) -> torch.optim.Optimizer:
    """Give every binary layer its path; return the optimizer that renews all scales."""
    paths = []
    for _, layer in binary_layers(model):
        layer.auxiliary = LiteralPath(layer, eta).to(layer.weight.device)
        paths.append(layer.auxiliary)
    optimizer = optimizer_of(model)
    optimizer.register_step_post_hook(lambda *_: [path.renew() for path in paths])
    return optimizer
