"""A binary convolution and its auxiliary path as one operator, and when a layer may use it."""

from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from surge.functional import is_channels_last, operator
from surge.method import Method

if TYPE_CHECKING:
    from surge.layers.conv import BinaryConv2d

WIDTHS = (16, 32, 64)
"""Channels that the kernels have tiles for."""

WIDE, PIXELS = 64, 2**16
"""So many channels are left to the stock kernels where more pixels fill a GPU."""

SURROGATES = {"clipped": 1, "bireal": 2}
"""The kernels' numbers for a method's input rule."""

AVAILABLE = find_spec("triton") is not None


def compiled() -> bool:
    """Return whether compiled code will start the kernels: Python takes longer to than they run."""
    return torch.compiler.is_dynamo_compiling()


def fits(layer: "BinaryConv2d", z: Tensor) -> bool:
    """Return whether the operator computes what the layer's own code would, and sooner.

    NaN and infinity may spread over one pixel more.
    """
    g, method = layer.geometry, layer.method
    widest = max(g.in_features, g.out_features)
    return (
        AVAILABLE
        and compiled()
        and z.is_cuda
        and z.dtype in (torch.bfloat16, torch.float16)
        and is_channels_last(z)
        and 0 < z[:, 0].numel() * widest < 2**31  # as far as the kernels count
        and g.kernel_size == (3, 3)
        and g.stride == g.padding == g.dilation == (1, 1)
        and g.groups == 1
        and g.in_features in WIDTHS
        and g.out_features in WIDTHS
        and (widest < WIDE or z[:, 0].numel() <= PIXELS)
        and type(method).binarize is Method.binarize
        and type(method).scale_output is Method.scale_output
    )


def respond(layer: "BinaryConv2d", z: Tensor) -> Tensor:
    """Do what ``layer.respond`` does."""
    return _call(layer, z, None, None, None, None)


def respond_dual(
    layer: "BinaryConv2d",
    z: Tensor,
    auxiliary: Tensor,
    scale: Tensor,
    probes: dict[str, Tensor],
) -> Tensor:
    """Do what tap, ``layer.respond`` and inject do together."""
    return _call(layer, z, auxiliary, scale, probes["main"], probes["auxiliary"])


def _call(layer: "BinaryConv2d", z: Tensor, *path: Tensor | None) -> Tensor:
    method = layer.method
    weight = method.binarize_weight(layer.weight)
    return narrow_conv(z, weight, method.output_scale(), *path, SURROGATES[method.surrogate])


def _setup(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    *saved, _, _, ctx.surrogate = inputs
    ctx.save_for_backward(*saved)


def _backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
    from surge.compensation.dual_path import refuse_double_backward
    from surge.kernels import narrow_conv as kernels

    refuse_double_backward()
    z, weight, alpha, auxiliary, scale = ctx.saved_tensors
    grad = grad.contiguous(memory_format=torch.channels_last)
    main = weight if alpha is None else weight * alpha.view(-1, 1, 1, 1)
    to_z, squares = kernels.input_gradient(grad, z, main, auxiliary, scale, ctx.surrogate)
    learns = ctx.needs_input_grad[3]
    raw = kernels.weight_gradient(grad, z, learns)
    to_alpha = None if alpha is None else (raw[0] * weight).sum(dim=(1, 2, 3)).to(alpha.dtype)
    to_weight = raw[0] if alpha is None else raw[0] * alpha.view(-1, 1, 1, 1)
    to_auxiliary = laid_out_as(auxiliary, scale * raw[1]) if learns else None
    norms = (None, None) if auxiliary is None else squares.unbind()
    return to_z, to_weight.to(weight.dtype), to_alpha, to_auxiliary, None, *norms, None


def laid_out_as(parameter: Tensor, grad: Tensor) -> Tensor:
    """Return a gradient that its parameter can take without another copy."""
    last = parameter.is_contiguous(memory_format=torch.channels_last)
    layout = torch.channels_last if last else torch.contiguous_format
    return grad.to(parameter.dtype).contiguous(memory_format=layout)


@operator("narrow_conv", backward=_backward, setup=_setup)
def narrow_conv(
    z: Tensor,
    weight: Tensor,
    alpha: Tensor | None,
    auxiliary: Tensor | None,
    scale: Tensor | None,
    probe_main: Tensor | None,
    probe_auxiliary: Tensor | None,
    surrogate: int,
) -> Tensor:
    """Return ``alpha * conv(sign(z), weight)``; backward as SURGE's dual path, in few passes.

    Without ``auxiliary`` the backward is the plain one. Squared norms of both input gradients
    leave as the gradients of the probes.
    """
    from surge.kernels import narrow_conv as kernels

    return kernels.forward(z, weight, alpha)
