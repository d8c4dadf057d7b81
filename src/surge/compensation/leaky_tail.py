"""The control that SURGE must beat: a surrogate with a tail, without auxiliary weights."""

from torch import Tensor

from surge.compensation.dual_path import leak
from surge.compensation.options import PathOptions
from surge.compensation.path import Path
from surge.layers.base import BinaryLayer


class LeakyTail(Path):
    """The control without auxiliary weights: some of ``Q_W^T G`` passes everywhere.

    dL/dz = (surrogate + rho kappa) Q_W^T G with kappa = E|z| / E[z^2].
    """

    def __init__(self, layer: BinaryLayer, options: PathOptions) -> None:
        """Set rho."""
        super().__init__(layer, options)
        self.scale.fill_(options.eta)

    def on_epoch(self, epoch: int, epochs: int) -> None:
        """Let rho decay, if it does."""
        super().on_epoch(epoch, epochs)
        self.scale.copy_(self.eta)

    def keep_settings(self) -> None:
        """Keep rho, unless it decays."""
        super().keep_settings()
        if self.options.decay == "none":
            self.scale.copy_(self.eta)

    def forward(self, layer: BinaryLayer, x: Tensor) -> Tensor:
        """Run the main path with a leaking sign."""
        z = layer.method.prepare_input(x)
        value = z.detach().float()
        kappa = value.abs().mean() / value.square().mean().clamp(min=1e-12)
        return layer.operate(leak(layer.method.binarize(z), z, self.scale * kappa), z)
