"""The part that all binary layers share."""

from typing import Any, cast

import torch
from torch import Tensor, nn

from surge.errors import UnsupportedLayerError
from surge.layers.duties import Duties
from surge.layers.product import (
    geometry_arguments,
    in_units,
    product_dtype,
    scaled_signs_product,
)
from surge.method import Geometry, Method, check_options, get_method


class Auxiliary(nn.Module):
    """What a layer knows of the path that repairs its gradient: it maps (layer, x) to y."""

    def on_epoch(self, epoch: int, epochs: int) -> None:
        """Set the schedule state for ``epoch`` of ``epochs``, in place."""

    def extra_loss(self) -> Tensor | None:
        """Return a term to add to the loss of the last forward, if there is one."""
        return None


class BinaryLayer(nn.Module):
    """A torch layer whose product is computed by a :class:`~surge.method.Method`.

    Subclasses also inherit the torch layer they replace and keep its parameter names. The
    latent weight is what ``state_dict`` holds; the bits exist only inside :meth:`forward`.
    """

    weight: nn.Parameter
    bias: nn.Parameter | None
    method: Method
    duties: Duties
    auxiliary: Auxiliary | None

    def bind(self, method: str, options: dict[str, Any]) -> None:
        """Give the layer its method; the layer's own parameters stay as they are."""
        cls = get_method(method)
        check_options(cls, options)
        created = cls(self.geometry, self.weight.detach(), **options)
        self.method = created.to(self.weight.device)
        self.method.train(self.training)
        self.duties = Duties(self.method)
        self.register_module("auxiliary", None)

    def _load_from_state_dict(self, state_dict: Any, prefix: str, *args: Any) -> None:
        super()._load_from_state_dict(state_dict, prefix, *args)
        if self.auxiliary is None:  # torch takes the name for known, and would say nothing
            unexpected = args[3]
            unexpected += [key for key in state_dict if key.startswith(f"{prefix}auxiliary.")]

    @property
    def geometry(self) -> Geometry:
        """The shape facts a method needs."""
        raise NotImplementedError

    def multiply(self, x: Tensor, weight: Tensor) -> Tensor:
        """Apply the layer's linear operator, without bias."""
        raise NotImplementedError

    def product(self, binary: Tensor, weight: Tensor) -> Tensor:
        """Multiply by a binarised weight; a scale inside it acts on the exact sum of +-1."""
        if self.method.two_levels and not self.training and binary.numel():
            (unit_x, high_x), (unit_w, high_w) = in_units(binary), in_units(weight)
            return self.multiply(unit_x, unit_w) * (high_x * high_w)
        if not self.method.scales_signs():
            return self.multiply(binary, weight)
        low = product_dtype(binary)
        arguments = geometry_arguments(self.geometry)
        return scaled_signs_product(binary.to(low), weight.to(low), *arguments)

    def operate(self, binary: Tensor, z: Tensor) -> Tensor:
        """Return the scaled product of binary inputs with the binarised weight."""
        weight = self.method.binarize_weight(self.weight)
        return self.method.scale_output(self.product(binary, weight), z)

    def respond(self, z: Tensor) -> Tensor:
        """Return the output, bias aside, for a prepared input ``z``."""
        return self.operate(self.method.binarize(z), z)

    def forward(self, input: Tensor) -> Tensor:  # torch's name, for calls by keyword
        """Binarise, multiply, scale; the auxiliary path acts only where a gradient will flow."""
        path = self.auxiliary
        learns = self.training and torch.is_grad_enabled()
        if learns and not torch.compiler.is_compiling() and self.duties.missed:
            self.duties.count()
        y: Tensor
        if path is not None and learns and input.requires_grad:
            y = path(self, input)
        else:
            y = self.respond(self.method.prepare_input(input))
        return y if self.bias is None else y + self.geometry.along_output(self.bias).to(y.dtype)

    def packed_weight(self) -> tuple[Tensor, Tensor]:
        """Return the values (+-1, or small odd integers) and scales that go to disk."""
        values, scale = self.method.packed_weight(self.weight)
        return values, scale.expand(self.weight.shape[0]).contiguous()

    def extra_repr(self) -> str:
        """Add the method to the torch layer's own description."""
        return f"{super().extra_repr()}, method={self.method.describe()}"


def check_convolution(layer: nn.Module) -> tuple[int, ...]:
    """Return the padding of a convolution as numbers, or raise if it is not supported."""
    conv = cast(nn.Conv2d, layer)
    if conv.padding_mode != "zeros":
        raise UnsupportedLayerError(
            f'padding_mode="{conv.padding_mode}" is not supported; only "zeros" is.'
        )
    if not isinstance(conv.padding, str):
        return tuple(conv.padding)
    if conv.padding == "valid":
        return (0,) * len(conv.kernel_size)
    total = [d * (k - 1) for d, k in zip(conv.dilation, conv.kernel_size, strict=True)]
    if any(t % 2 for t in total):
        raise UnsupportedLayerError(
            f'padding="same" with kernel size {tuple(conv.kernel_size)} pads one side more than '
            "the other, which is not supported; use an odd kernel or give the padding in numbers."
        )
    return tuple(t // 2 for t in total)
