"""SURGE's gradient: two operators that change nothing forward and repair the backward.

With G the gradient at a layer's output, z the tensor that enters sign, W_a the auxiliary
weight and s the scale (the paper's lambda)::

    dL/dz   = g_b + s * g_a        g_a = W_a^T G   (without the scale)
    dL/dW_a = s * (z * G)          dL/dW_b as without SURGE

The paper computes ``f_b - stop(s f_a) + s f_a``. Its value is f_b only up to rounding, and it
costs an auxiliary forward whose contribution is zero; here that forward does not exist.

Squared norms leave the backward *as gradients of probes*, scalar tensors that take no other
part: they add up over micro-batches, follow recomputation, and need no host synchronisation.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from surge.compensation.eight_bits import transposed_linear
from surge.compensation.noise import normal
from surge.functional import is_channels_last, is_traced, operator, row_sums, widened
from surge.layers.product import transposed, transposed_factors


def refuse_double_backward() -> None:
    """Raise when a gradient of a gradient is asked for."""
    if torch.is_grad_enabled():
        raise RuntimeError(
            "A compensated layer was differentiated twice (create_graph=True); SURGE's backward "
            "is not a gradient of any function, so second derivatives are refused. Call strip_ "
            "first."
        )


def squared_norm(x: Tensor) -> Tensor:
    """Return the sum of squares of all elements in float32, accumulated at least so precisely."""
    if is_traced() and is_channels_last(x):
        return row_sums(widened(x).square()).sum().float()
    wide = torch.promote_types(x.dtype, torch.float32)
    norm: Tensor = torch.linalg.vector_norm(x, dtype=wide)
    return norm.float().square()


def scaled(scale: Tensor, x: Tensor, dtype: torch.dtype) -> Tensor:
    """Return ``scale * x`` as ``dtype``; a small scale must not be rounded to half precision."""
    return (scale * x.to(torch.promote_types(x.dtype, scale.dtype))).to(dtype)


def _tap_backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor]:
    refuse_double_backward()
    return grad, squared_norm(grad)


@operator("tap", backward=_tap_backward)
def tap(x: Tensor, probe: Tensor) -> Tensor:
    """Return ``x``; its gradient passes, and the squared norm goes to ``probe``."""
    return x.clone()


def _tap_whole_backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor]:
    refuse_double_backward()
    return grad, grad


@operator("tap_whole", backward=_tap_whole_backward)
def tap_whole(x: Tensor, probe: Tensor) -> Tensor:
    """Return ``x``; its gradient passes, and goes to ``probe`` too, which has the same shape.

    For weights: their gradients over micro-batches add up before a norm is taken.
    """
    return x.clone()


def _leak_setup(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    ctx.save_for_backward(inputs[2])


def _leak_backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor, None]:
    refuse_double_backward()
    (factor,) = ctx.saved_tensors
    return grad, scaled(factor, grad, grad.dtype), None


@operator("leak", backward=_leak_backward, setup=_leak_setup)
def leak(binary: Tensor, z: Tensor, factor: Tensor) -> Tensor:
    """Return ``binary``; a ``factor`` of its gradient also reaches ``z``."""
    return binary.clone()


def _inject_setup(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    _, z, saved, weight, scale, _, weighting, noise = inputs[:8]
    stride, padding, dilation, groups, gain, centre, right, ctx.in_fp8, ctx.bare = inputs[8:]
    # Without a weight to learn the value of z is not needed, only its sizes.
    kept = saved if ctx.needs_input_grad[3] else None
    ctx.sizes = saved.shape
    ctx.save_for_backward(kept, weight, scale, weighting, noise, gain, centre, right)
    ctx.input_dtype = z.dtype
    ctx.convolution = (stride, padding, dilation) if stride else ()
    ctx.groups = groups


def noise_like(g_a: Tensor, weighting: Tensor | None, words: Tensor) -> Tensor:
    """Return noise of the same norm as ``g_a``, weighted alike, from the words of a draw."""
    drawn = normal(words, g_a)
    if weighting is not None:
        drawn = drawn * weighting
    ratio = squared_norm(g_a) / squared_norm(drawn).clamp(min=1e-30)
    return (drawn * ratio.sqrt()).to(g_a.dtype)


def _inject_backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
    refuse_double_backward()
    saved, weight, scale, weighting, noise, gain, centre, right = ctx.saved_tensors
    if gain is not None:
        weight = gain * (weight - centre)
    needs = (ctx.needs_input_grad[1], ctx.needs_input_grad[3])
    x = ctx.sizes if saved is None else saved
    to_right = None
    if right is not None:
        g_a, to_weight, to_right = transposed_factors(
            grad, x, weight, right, ctx.convolution, ctx.groups, needs
        )
    elif ctx.in_fp8 and not ctx.convolution:
        g_a, to_weight = transposed_linear(grad, saved, weight, needs)
    else:
        g_a, to_weight = transposed(grad, x, weight, ctx.convolution, ctx.groups, needs)
    to_input, norm = None, None
    if g_a is not None:
        if weighting is not None:
            g_a = g_a * weighting.to(g_a.dtype)
        if noise is not None:
            g_a = noise_like(g_a, weighting, noise)
        if ctx.bare:
            to_input = g_a.to(ctx.input_dtype)
        else:
            norm = squared_norm(g_a)
            to_input = scaled(scale, g_a, ctx.input_dtype)
    if to_weight is not None:
        to_weight = scaled(scale, to_weight, weight.dtype)
    if to_right is not None:
        to_right = scaled(scale, to_right, right.dtype)
    return grad, to_input, None, to_weight, None, norm, *(None,) * 8, to_right, None, None


@operator("inject", backward=_inject_backward, setup=_inject_setup)
def inject(
    output: Tensor,
    z: Tensor,
    saved: Tensor,
    weight: Tensor,
    scale: Tensor,
    probe: Tensor,
    weighting: Tensor | None,
    noise: Tensor | None,
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    groups: int,
    gain: Tensor | None = None,
    centre: Tensor | None = None,
    right: Tensor | None = None,
    in_fp8: bool = False,
    bare: bool = False,
) -> Tensor:
    """Return ``output``; backward adds the auxiliary gradients to ``z`` and ``weight``.

    ``saved`` has the value of ``z`` (pass the tapped tensor: the main path saves it anyway).
    ``weighting`` multiplies g_a (the scope mask, or a dose per channel). With ``noise``, the
    words of a :class:`~surge.compensation.noise.Source`, g_a is replaced by Gaussian noise of the
    same norm. With ``gain`` and ``centre``, one each per filter, the operator's weight is
    ``gain * (weight - centre)``, made when it is needed; with ``right`` it is ``weight @ right``,
    never made. ``in_fp8``: a linear layer's products are computed in 8 bits. ``bare``: g_a goes
    back to ``z`` as it is, to be scaled and measured there.
    """
    return output.clone()
