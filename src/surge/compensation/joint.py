"""Input gradients of both paths from one pass over G: product and injection as one operator.

With [ | ] side by side::

    [g | g_a] = [W_b | W_a]^T G        one input gradient of twice the width

g still has to pass the surrogate. G is read once instead of twice, and a product of 64 channels,
which fills half a tile of a tensor core, fills a whole one. Values are those of the two paths
apart, up to rounding. Weight gradients stay apart: side by side, their inputs would be copied.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from surge.compensation.dual_path import refuse_double_backward, scaled, squared_norm
from surge.functional import operator
from surge.layers.base import BinaryLayer
from surge.layers.conv import BinaryConv2d
from surge.layers.product import geometry_arguments, scaled_signs, transposed
from surge.method import Method

if TYPE_CHECKING:
    from surge.compensation.auxiliary import AuxiliaryPath

CHANNELS = 64
"""Input channels up to which one pass is faster."""


def joins(path: "AuxiliaryPath", layer: BinaryLayer, z: Tensor) -> bool:
    """Return whether the operator does exactly what the two paths would, and sooner."""
    geometry, method, options = layer.geometry, layer.method, path.options
    return (
        _on_gpu(z)
        and z.dim() == 4
        and type(layer) is BinaryConv2d
        and geometry.in_features <= CHANNELS
        and geometry.groups == 1
        and path.arguments(layer) == geometry_arguments(geometry)
        and method.scales_signs()
        and type(method).scale_output is Method.scale_output
        and method.output_scale() is None
        and options.scope == "all"
        and options.dose == "uniform"
        and not (options.noise or options.align or options.weight_side)
    )


def _on_gpu(z: Tensor) -> bool:
    return z.is_cuda


def respond(path: "AuxiliaryPath", layer: BinaryLayer, route: Tensor, tapped: Tensor) -> Tensor:
    """Do what ``layer.respond`` and inject do together."""
    binary = layer.method.binarize(tapped)
    weight = layer.method.binarize_weight(layer.weight)
    kind = binary.device.type
    if torch.is_autocast_enabled(kind):
        low = torch.get_autocast_dtype(kind)
        binary, weight = binary.to(low), weight.to(low)
    auxiliary, gain, centre = path.ingredients(layer)
    stride, padding, dilation, _ = geometry_arguments(layer.geometry)
    return joint_product(
        binary,
        weight,
        route,
        tapped.detach(),
        auxiliary,
        path.scale,
        path.probes["auxiliary"],
        stride,
        padding,
        dilation,
        gain,
        centre,
    )


def _setup(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    binary, weight, route, value, auxiliary, scale, _, *ctx.convolution, gain, centre = inputs
    ctx.save_for_backward(binary, weight, value, auxiliary, scale, gain, centre)
    ctx.route_dtype = route.dtype


def _backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
    refuse_double_backward()
    binary, weight, value, auxiliary, scale, gain, centre = ctx.saved_tensors
    real = auxiliary if gain is None else gain * (auxiliary - centre)
    low = real.to(weight.dtype)
    call = (ctx.convolution, 1)
    to_inputs, _ = transposed(
        grad, _twice_as_wide(binary), torch.cat([weight, low], dim=1), *call, (True, False)
    )
    assert to_inputs is not None
    to_binary, g_a = to_inputs.chunk(2, dim=1)
    _, to_weight = transposed(grad, binary, weight, *call, (False, True))
    to_auxiliary = None
    if ctx.needs_input_grad[4]:
        _, raw = transposed(grad, value, low, *call, (False, True))
        assert raw is not None
        to_auxiliary = scaled(scale, raw, auxiliary.dtype)
    to_route = scaled(scale, g_a, ctx.route_dtype)
    return to_binary, to_weight, to_route, None, to_auxiliary, None, squared_norm(g_a), *(None,) * 5


def _twice_as_wide(x: Tensor) -> Tensor:
    """Return memory of twice the channels: of an input, its gradient takes only the sizes."""
    batch, channels, height, width = x.shape
    last = x.is_contiguous(memory_format=torch.channels_last)
    layout = torch.channels_last if last else torch.contiguous_format
    return torch.empty(
        batch, 2 * channels, height, width, dtype=x.dtype, device=x.device, memory_format=layout
    )


@operator("joint_product", backward=_backward, setup=_setup)
def joint_product(
    binary: Tensor,
    weight: Tensor,
    route: Tensor,
    value: Tensor,
    auxiliary: Tensor,
    scale: Tensor,
    probe: Tensor,
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    gain: Tensor | None = None,
    centre: Tensor | None = None,
) -> Tensor:
    """Return the convolution of ``binary`` with scaled signs; backward both paths.

    ``value`` is the value of ``route``, the tensor that the auxiliary gradient is added to.
    """
    return scaled_signs(binary, weight, stride, padding, dilation, 1)
