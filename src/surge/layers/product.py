"""The linear operator of a layer: its transpose, and the product with scaled signs.

A sum of +-1 is an exact integer, and 0 is a common one. With a real scale inside the weight it
would come out as a rounding error, whose sign the next layer takes; so the scale multiplies the
sum, here as in the engine.
"""

from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from surge.functional import operator, sign, widened
from surge.method import Geometry, per_filter


def geometry_arguments(geometry: Geometry) -> tuple[list[int], list[int], list[int], int]:
    """Return stride, padding, dilation and groups as operators take them; empty if linear."""
    return (
        list(geometry.stride),
        list(geometry.padding),
        list(geometry.dilation),
        geometry.groups,
    )


def input_gradient(
    grad: Tensor,
    sizes: Sequence[int],
    weight: Tensor,
    convolution: Sequence[Sequence[int]],
    groups: int,
) -> Tensor:
    """Return W^T G alone, for an input of these sizes: nothing of the input itself is needed."""
    weight = weight.to(grad.dtype)
    if not convolution:
        return grad @ weight
    stride, padding, dilation = convolution
    kernel = weight.shape[2:]
    reach = zip(grad.shape[-len(stride) :], kernel, *convolution, strict=True)
    covered = [(n - 1) * s - 2 * p + d * (k - 1) + 1 for n, k, s, p, d in reach]
    rest = [n - c for n, c in zip(sizes[-len(stride) :], covered, strict=True)]
    batched = grad.dim() == len(stride) + 2
    found: Tensor = torch.ops.aten.convolution(
        grad if batched else grad.unsqueeze(0),
        weight,
        None,
        stride,
        padding,
        dilation,
        True,
        rest,
        groups,
    )
    return found if batched else found.squeeze(0)


def transposed(
    grad: Tensor,
    x: Tensor | torch.Size,
    weight: Tensor,
    convolution: Sequence[Sequence[int]],
    groups: int,
    needs: tuple[bool, bool],
) -> tuple[Tensor | None, Tensor | None]:
    """Return (W^T G, x * G) of a convolution, or of a linear map if ``convolution`` is empty.

    Both are computed in the gradient's dtype, as the main path does under autocast. Where the
    weight does not learn, ``x`` may be its sizes.
    """
    if not isinstance(x, Tensor):
        found = input_gradient(grad, x, weight, convolution, groups) if needs[0] else None
        return found, None
    x, weight = x.to(grad.dtype), weight.to(grad.dtype)
    if not convolution:
        to_input = grad @ weight if needs[0] else None
        rows, columns = grad.shape[-1], x.shape[-1]
        to_weight = grad.reshape(-1, rows).T @ x.reshape(-1, columns) if needs[1] else None
        return to_input, to_weight
    stride, padding, dilation = convolution
    batched = grad.dim() == len(stride) + 2
    to_input, to_weight, _ = torch.ops.aten.convolution_backward(
        grad if batched else grad.unsqueeze(0),
        x if batched else x.unsqueeze(0),
        weight,
        None,
        stride,
        padding,
        dilation,
        False,
        [0] * len(stride),
        groups,
        [*needs, False],
    )
    if to_input is not None and not batched:
        to_input = to_input.squeeze(0)
    return to_input, to_weight


def product(x: Tensor, weight: Tensor, convolution: Sequence[Sequence[int]], groups: int) -> Tensor:
    """Return W x of a convolution, or of a linear map if ``convolution`` is empty."""
    if not convolution:
        return F.linear(x, weight)
    stride, padding, dilation = convolution
    convolve = F.conv1d if len(stride) == 1 else F.conv2d
    return convolve(x, weight, None, stride, padding, dilation, groups)


def transposed_factors(
    grad: Tensor,
    x: Tensor | torch.Size,
    left: Tensor,
    right: Tensor,
    convolution: Sequence[Sequence[int]],
    groups: int,
    needs: tuple[bool, bool],
) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
    """Do what :func:`transposed` does for ``W = left @ right``, without making W or its gradient.

    A product with few rows or columns takes the place of each large one. In every group ``right``
    comes first, with the layer's geometry, then that group's part of ``left`` at each place.
    """
    dims = right.dim() - 2 if convolution else 0
    outer = ([1] * dims, [0] * dims, [1] * dims) if convolution else ()
    inner = right.repeat(groups, *(1 for _ in right.shape[1:]))
    left = left.view(*left.shape, *(1 for _ in range(dims)))
    sizes = list(grad.shape)
    sizes[grad.dim() - 1 - dims] = inner.shape[0]
    back = input_gradient(grad, sizes, left, outer, groups)
    if not isinstance(x, Tensor):
        return input_gradient(back, x, inner, convolution, groups), None, None
    low = grad.dtype
    between = product(x.to(low), inner.to(low), convolution, groups)
    _, to_left = transposed(grad, between, left, outer, groups, (False, True))
    to_x, to_right = transposed(back, x, inner, convolution, groups, needs)
    assert to_left is not None and to_right is not None
    to_right = to_right.view(groups, *right.shape).sum(dim=0)
    return to_x, to_left.flatten(1), to_right


def product_dtype(x: Tensor) -> torch.dtype:
    """Return the dtype in which a product with ``x`` comes out: autocast's, where that is on."""
    kind = x.device.type
    on = kind != "meta" and torch.is_autocast_enabled(kind) and x.dtype != torch.float64
    return torch.get_autocast_dtype(kind) if on else x.dtype


def in_units(x: Tensor) -> tuple[Tensor, Tensor]:
    """Return values +-c, or 0 and c, as +-1, or 0 and 1, and c."""
    # A NaN stays where it is.
    high = x.detach().nan_to_num(nan=0.0, posinf=torch.inf, neginf=-torch.inf).abs().amax()
    return x / torch.where(high > 0, high, 1), high


def _setup(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    x, weight, stride, padding, dilation, groups = inputs
    ctx.save_for_backward(x, weight)
    ctx.convolution = (stride, padding, dilation) if stride else ()
    ctx.groups = groups


def _backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
    x, weight = ctx.saved_tensors
    needs = (ctx.needs_input_grad[0], ctx.needs_input_grad[1])
    return *transposed(grad, x, weight, ctx.convolution, ctx.groups, needs), *(None,) * 4


@operator("scaled_signs_product", backward=_backward, setup=_setup)
def scaled_signs_product(
    x: Tensor,
    weight: Tensor,
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    groups: int,
) -> Tensor:
    """Return the product of ``x`` with a weight that is +-s in every filter, as s times a sum.

    The gradients are those of the plain product with ``weight``.
    """
    scale = weight.abs().amax(dim=per_filter(weight)).view(-1, *(1 for _ in stride))
    convolution = (stride, padding, dilation) if stride else ()
    return product(x, sign(weight), convolution, groups) * scale


def _scaled_setup(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    x, weight, scale, stride, padding, dilation, ctx.groups = inputs
    ctx.save_for_backward(x, weight, scale)
    ctx.convolution = (stride, padding, dilation)


def _scaled_backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
    x, weight, scale = ctx.saved_tensors
    factor = scale.view(-1, *(1 for _ in per_filter(weight)))
    needs = (ctx.needs_input_grad[0], any(ctx.needs_input_grad[1:3]))
    to_x, raw = transposed(grad, x, weight * factor, ctx.convolution, ctx.groups, needs)
    if raw is None:
        return to_x, *(None,) * 6
    to_weight = (raw * factor).to(weight.dtype)
    to_scale = (widened(raw) * weight).sum(dim=per_filter(weight)).to(scale.dtype)
    return to_x, to_weight, to_scale, *(None,) * 4


@operator("scaled_product", backward=_scaled_backward, setup=_scaled_setup)
def scaled_product(
    x: Tensor,
    weight: Tensor,
    scale: Tensor,
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    groups: int,
) -> Tensor:
    """Return a convolution times a scale of each filter.

    In the backward the scale multiplies weights, which are few, and its gradient comes from
    theirs: the sum of G y over all pixels is that of (x * G) W over a filter. So G is used as it
    comes, and y is not needed.
    """
    y = product(x, weight.to(x.dtype), (stride, padding, dilation), groups)
    return y * scale.view(-1, *(1 for _ in stride)).to(y.dtype)
