"""Binary convolutions in one and two dimensions."""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from surge.kernels import fused
from surge.layers.base import BinaryLayer, check_convolution
from surge.layers.product import geometry_arguments, product_dtype, scaled_product
from surge.method import Geometry, Method


class _BinaryConv(BinaryLayer):
    in_channels: int
    out_channels: int
    kernel_size: tuple[int, ...]
    stride: tuple[int, ...]
    dilation: tuple[int, ...]
    groups: int

    @property
    def geometry(self) -> Geometry:
        return Geometry(
            kind="conv",
            out_features=self.out_channels,
            in_features=self.in_channels,
            kernel_size=tuple(self.kernel_size),
            stride=tuple(self.stride),
            padding=check_convolution(self),
            dilation=tuple(self.dilation),
            groups=self.groups,
        )

    def operate(self, binary: Tensor, z: Tensor) -> Tensor:
        """Return the scaled product; while it learns, the scale acts on weights backward."""
        method, scale = self.method, self.method.output_scale()
        learns = self.training and torch.is_grad_enabled()
        own = type(method).scale_output is not Method.scale_output or method.scales_signs()
        if scale is None or own or not learns:
            return super().operate(binary, z)
        weight = method.binarize_weight(self.weight)
        arguments = geometry_arguments(self.geometry)
        return scaled_product(binary.to(product_dtype(binary)), weight, scale, *arguments)


class BinaryConv1d(_BinaryConv, nn.Conv1d):  # type: ignore[misc]
    """A 1-d convolution with binary weights and inputs; takes ``nn.Conv1d``'s arguments."""

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: int,
        *,
        method: str = "bnn",
        method_options: dict[str, Any] | None = None,
        **conv_options: Any,
    ) -> None:
        """Build the convolution, then give it its method."""
        nn.Conv1d.__init__(self, in_channels, out_channels, kernel_size, **conv_options)
        self.bind(method, method_options or {})

    def multiply(self, x: Tensor, weight: Tensor) -> Tensor:
        """Convolve without bias."""
        return F.conv1d(x, weight, None, self.stride, self.padding, self.dilation, self.groups)


class BinaryConv2d(_BinaryConv, nn.Conv2d):  # type: ignore[misc]
    """A 2-d convolution with binary weights and inputs; takes ``nn.Conv2d``'s arguments.

    >>> BinaryConv2d(8, 16, 3, padding=1, bias=False, method="bireal").weight.shape
    torch.Size([16, 8, 3, 3])
    """

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: int | tuple[int, int],
        *,
        method: str = "bnn",
        method_options: dict[str, Any] | None = None,
        **conv_options: Any,
    ) -> None:
        """Build the convolution, then give it its method."""
        nn.Conv2d.__init__(self, in_channels, out_channels, kernel_size, **conv_options)
        self.bind(method, method_options or {})

    def multiply(self, x: Tensor, weight: Tensor) -> Tensor:
        """Convolve without bias."""
        return F.conv2d(x, weight, None, self.stride, self.padding, self.dilation, self.groups)

    def respond(self, z: Tensor) -> Tensor:
        """Return the output, bias aside; on a GPU narrow layers have a kernel of their own."""
        return fused.respond(self, z) if fused.fits(self, z) else super().respond(z)
