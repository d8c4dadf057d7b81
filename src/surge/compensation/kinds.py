"""The kinds of auxiliary weight, by the names that options give them."""

import torch
from torch import Tensor, nn

from surge.compensation.auxiliary import AuxiliaryPath, Ingredients, redraw
from surge.compensation.options import Kind
from surge.errors import ConfigError
from surge.layers.base import BinaryLayer
from surge.method import per_filter


class TiedPath(AuxiliaryPath):
    """Auxiliary weight = output scale * standardised latent weight, renewed at every use."""

    def _create_weight(self, layer: BinaryLayer, generator: torch.Generator) -> None:
        if layer.weight[0].numel() < 2:
            raise ConfigError(
                "a tied auxiliary standardises every filter and needs at least 2 weights in each, "
                f"but the weight has shape {tuple(layer.weight.shape)}"
            )
        self.weight = None

    def effective_weight(self, layer: BinaryLayer) -> Tensor:
        """Return the real-valued weight that the binary one stands for."""
        return self.ingredients(layer).whole()

    @torch.no_grad()
    def ingredients(self, layer: BinaryLayer) -> Ingredients:
        """Return the latent weight, which is there anyway, and what to do with its filters."""
        weight = layer.weight.detach()
        dims = per_filter(weight)
        scale = layer.method.packed_scale(weight).expand(weight.shape[0])
        spread = (weight.var(dim=dims, keepdim=True) + 1e-12).sqrt()
        centre = weight.mean(dim=dims, keepdim=True)
        return Ingredients(weight, layer.geometry.along_weight(scale) / spread, centre)


class PointwisePath(AuxiliaryPath):
    """SURGE*: a 1x1 auxiliary convolution, same stride, no padding."""

    def _weight_shape(self, layer: BinaryLayer) -> torch.Size:
        geometry = layer.geometry
        reach = zip(geometry.padding, geometry.dilation, geometry.kernel_size, strict=True)
        if any(2 * p != d * (k - 1) for p, d, k in reach):
            raise ConfigError(
                f"padding {geometry.padding} does not centre its kernel {geometry.kernel_size}, "
                "so a 1x1 auxiliary would have another output size"
            )
        return torch.Size((*layer.weight.shape[:2], *(1 for _ in geometry.kernel_size)))

    def arguments(self, layer: BinaryLayer) -> tuple[list[int], list[int], list[int], int]:
        """Return the geometry of the 1x1 operator."""
        stride, padding, dilation, groups = super().arguments(layer)
        return stride, [0] * len(padding), [1] * len(dilation), groups


class LowRankPath(AuxiliaryPath):
    """Auxiliary weight = left @ right, of a small rank; its products are small, too."""

    def _create_weight(self, layer: BinaryLayer, generator: torch.Generator) -> None:
        source = layer.weight.detach()
        out, inner = source.shape[0], source[0].numel()
        rank = min(self.options.rank, out, inner)
        self.weight = None
        self.left = nn.Parameter(redraw(source, torch.Size((out, rank)), generator))
        self.right = nn.Parameter(redraw(source, torch.Size((rank, inner)), generator))

    def effective_weight(self, layer: BinaryLayer) -> Tensor:
        """Return the product, in the layer's shape."""
        return (self.left @ self.right).view_as(layer.weight)

    def ingredients(self, layer: BinaryLayer) -> Ingredients:
        """Return both factors."""
        right = self.right.view(-1, *layer.weight.shape[1:])
        return Ingredients(self._learning(self.left), right=self._learning(right))


PATHS: dict[Kind, type[AuxiliaryPath]] = {
    "independent": AuxiliaryPath,
    "copied": AuxiliaryPath,
    "tied": TiedPath,
    "pointwise": PointwisePath,
    "low_rank": LowRankPath,
}
