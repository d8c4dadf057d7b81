"""The first convolution of a network on images, which on a GPU has kernels of its own."""

from typing import Any

import torch
from torch import Tensor, nn

from surge.functional import is_channels_last, operator, save_inputs
from surge.kernels import fused
from surge.layers.product import product_dtype

WIDTHS = (16, 64, 128)
"""Output channels that the kernels have tiles for."""


class StemConv2d(nn.Conv2d):
    """``nn.Conv2d`` for images: in a compiled step on a GPU its own kernels do the same sooner.

    >>> StemConv2d(3, 16, 3, padding=1, bias=False)(torch.zeros(1, 3, 8, 8)).shape
    torch.Size([1, 16, 8, 8])
    """

    def forward(self, input: Tensor) -> Tensor:  # torch's name, for calls by keyword
        """Convolve; everywhere but in compiled code for a GPU as ``nn.Conv2d`` does."""
        if fits(self, input):
            return stem_conv(input.to(product_dtype(input)), self.weight)
        return super().forward(input)


def fits(layer: nn.Conv2d, image: Tensor) -> bool:
    """Return whether the operator computes what the layer's own code would, and sooner.

    An image that learns would get no gradient from it.
    """
    return (
        fused.AVAILABLE
        and fused.compiled()
        and image.is_cuda
        and not image.requires_grad
        and product_dtype(image) in (torch.bfloat16, torch.float16)
        and is_channels_last(image)
        and image.shape[1] == layer.in_channels == 3
        and layer.out_channels in WIDTHS
        and 0 < image[:, 0].numel() * layer.out_channels < 2**31  # as far as the kernels count
        and layer.kernel_size == (3, 3)
        and layer.stride == layer.padding == layer.dilation == (1, 1)
        and layer.groups == 1
        and layer.padding_mode == "zeros"
        and layer.bias is None
    )


def _backward(ctx: Any, grad: Tensor) -> tuple[None, Tensor]:
    from surge.kernels import stem_conv as kernels

    image, weight = ctx.saved_tensors
    grad = grad.contiguous(memory_format=torch.channels_last)
    return None, fused.laid_out_as(weight, kernels.weight_gradient(grad, image))


@operator("stem_conv", backward=_backward, setup=save_inputs)
def stem_conv(image: Tensor, weight: Tensor) -> Tensor:
    """Return a 3x3 convolution with padding 1, in the image's dtype; the image gets no gradient."""
    from surge.kernels import stem_conv as kernels

    return kernels.forward(image, weight)
