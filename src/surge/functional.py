r"""Sign, its surrogate gradients, and DoReFa's quantiser: pure functions.

Every function here is exact in the forward direction (values are +1 and -1, ``sign(0) =
sign(-0.0) = +1``, ``sign(+-inf) = +-1``, NaN stays NaN) and has a chosen backward rule.

========================  =========================================  ========================
function                  factor that multiplies the gradient        from
========================  =========================================  ========================
``sign_identity``         1                                          straight-through (2013)
``sign_clipped``          1 where abs(x) <= 1, else 0                BNN (2016)
``sign_bireal``           max(0, 2 - 2 abs(x))                       Bi-Real Net (2018)
``sign_ede``              k t (1 - tanh(t x)^2)                      IR-Net (2020)
``sign_swish``            b (2 - b x tanh(b x/2)) / (1 + cosh(b x))  BNN+ (2018)
``scaled_sign_identity``  1, whatever the scale                      DoReFa-Net (2016)
``scaled_sign_clipped``   1 where abs(x) <= 1, whatever the scale    Bi-Real Net's weights
========================  =========================================  ========================

The rules are *operators* (see :func:`operator`), because ``torch.compile`` can silently drop
the backward of a ``torch.autograd.Function`` whose forward is piecewise constant.
"""

import hashlib
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar, cast

import torch
import torch.compiler.config
from torch import Tensor
from torch.fx.experimental.proxy_tensor import get_proxy_mode

from surge.errors import ConfigError

Backward = Callable[..., Any]

Result = TypeVar("Result")

EPSILON = 1e-5
"""Added to a variance before its root is taken."""

BODIES: dict[str, Callable[..., Any]] = {}
"""Every operator ``surge::<name>`` as the plain function it is, for exports that write it out."""


def version_of(folder: Path) -> str:
    """Return a word that changes whenever a Python file below a folder does."""
    found = hashlib.sha256()
    for path in sorted(folder.rglob("*.py")):
        found.update(path.read_bytes())
    return found.hexdigest()[:16]


# torch.compile keeps graphs on disk and finds them by the names of their operators: after a change
# of a backward it would go on with the old one.
torch.compiler.config.cache_key_tag += f" surge {version_of(Path(__file__).parent)}"


def operator(
    name: str, *, backward: Backward, setup: Backward | None = None
) -> Callable[[Callable[..., Result]], Callable[..., Result]]:
    """Turn a traceable function into the operator ``surge::<name>`` with its own backward.

    ``torch.library.triton_op`` is used for what it promises, not for Triton: the body stays
    visible to the compiler, so the forward fuses with its neighbours instead of being a wall.
    """

    def register(forward: Callable[..., Result]) -> Callable[..., Result]:
        log = logging.getLogger("torch._library.triton")
        heard, log.disabled = log.disabled, True  # where Triton is missing, a warning per operator
        try:
            op: Any = torch.library.triton_op(f"surge::{name}", forward, mutates_args=())
        finally:
            log.disabled = heard
        op.register_autograd(backward, setup_context=setup)
        BODIES[name] = forward
        return cast(Callable[..., Result], op)

    return register


def save_inputs(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    """Keep all inputs of an operator, tensors every one, for its backward."""
    ctx.save_for_backward(*inputs)


def save_first(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    """Keep the first input of an operator for its backward."""
    ctx.save_for_backward(inputs[0])


def pass_to_first(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
    """Give the gradient of an operator with two inputs to the first, unchanged."""
    return grad, None


def sign(x: Tensor) -> Tensor:
    """Return +1 where ``x >= 0``, -1 where ``x < 0``, NaN where NaN; no gradient.

    >>> sign(torch.tensor([-2.0, -0.0, 0.0, float("inf")])).tolist()
    [-1.0, 1.0, 1.0, 1.0]
    """
    x = x.detach()
    return torch.where(x >= 0, 1.0, torch.where(x < 0, -1.0, x)).to(x.dtype)


def is_channels_last(x: Tensor) -> bool:
    """Return whether an image is laid out pixel by pixel."""
    return x.dim() == 4 and x.is_contiguous(memory_format=torch.channels_last)


def is_traced() -> bool:
    """Return whether a compiler looks on; torch 2.11 does not say so of a backward."""
    return torch.compiler.is_compiling() or get_proxy_mode() is not None


def widened(x: Tensor) -> Tensor:
    """Return ``x`` in float32 at least, for sums and series that half precision would spoil."""
    return x.to(torch.promote_types(x.dtype, torch.float32))


def wide_default() -> torch.dtype:
    """Return torch's default dtype, or float32 where that is a half one."""
    return torch.promote_types(torch.get_default_dtype(), torch.float32)


def row_sums(x: Tensor) -> Tensor:
    """Return the sum of every image, keeping dimensions: of rows first, in the order of memory.

    Compiled sums run along dimensions, and across memory they use little of what they read. Sums of
    rows share a pass with each other, and with whatever makes the rows.
    """
    return x.sum(dim=(1, 3), keepdim=True).sum(dim=2, keepdim=True)


def unit_variance(x: Tensor, dims: tuple[int, ...], *, centred: bool = False) -> Tensor:
    """Divide every sample by its standard deviation, ``centred``: minus its mean."""
    compiled = torch.compiler.is_dynamo_compiling()
    if compiled and len(dims) == 3 and is_channels_last(x) and x[:1].numel() > 1:
        return unit_variance_by_row(x, centred)[0]
    centre = x - x.mean(dim=dims, keepdim=True) if centred else x
    return centre / (x.var(dim=dims, keepdim=True) + EPSILON).sqrt()


def _by_row_setup(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    ctx.centred = inputs[1]
    ctx.save_for_backward(*output)


def _by_row_backward(ctx: Any, grad: Tensor, *_: Tensor | None) -> tuple[Tensor, None]:
    z, gain, shift = ctx.saved_tensors
    wide, count = widened(grad), z.shape[1:].numel()
    found = wide - (z - shift) * (row_sums(wide * z) / (count - 1))
    if ctx.centred:
        found = found - row_sums(wide) / count
    return (found * gain).to(grad.dtype), None


@operator("unit_variance_by_row", backward=_by_row_backward, setup=_by_row_setup)
def unit_variance_by_row(x: Tensor, centred: bool) -> tuple[Tensor, Tensor, Tensor]:
    """Return images of unit variance, what they were multiplied by, and their new mean.

    The last two are for the backward alone. The moments are those of rows, put together. For every
    element nothing but sums and products is computed, here and in the backward. What is read twice
    is x, not its widened form: the compiler keeps that.
    """
    count = x.shape[1:].numel()
    within, middle = torch.var_mean(widened(x), dim=(1, 3), correction=0, keepdim=True)
    mean = middle.mean(dim=2, keepdim=True)
    variance = (within + (middle - mean).square()).mean(dim=2, keepdim=True)
    gain = (variance * (count / (count - 1)) + EPSILON).rsqrt()
    centre = x - mean if centred else x
    shift = torch.zeros_like(gain) if centred else mean * gain
    return (centre * gain).to(x.dtype), gain, shift


def _identity_backward(ctx: Any, grad: Tensor) -> Tensor:
    return grad


def _clipped_backward(ctx: Any, grad: Tensor) -> Tensor:
    x: Tensor = ctx.saved_tensors[0]
    return grad * (x.abs() <= 1)


def _bireal_backward(ctx: Any, grad: Tensor) -> Tensor:
    x: Tensor = ctx.saved_tensors[0]
    return grad * (2 - 2 * x.abs()).clamp(min=0)


def _ede_backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
    x, k, t = ctx.saved_tensors
    slope = k * t * (1 - torch.tanh(t * x).square())
    return (grad * slope).to(x.dtype), None, None


def _swish_backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
    x, beta = ctx.saved_tensors
    u = beta * x
    # 1 / (1 + cosh u) written with the logistic function, which cannot overflow.
    bell = 2 * torch.sigmoid(u) * torch.sigmoid(-u)
    inside = torch.where(u.isinf(), 0.0, 2 - u * torch.tanh(u / 2))
    return (grad * beta * inside * bell).to(x.dtype), None


@operator("sign_identity", backward=_identity_backward)
def sign_identity(x: Tensor) -> Tensor:
    """Sign whose gradient passes unchanged."""
    return sign(x)


@operator("sign_clipped", backward=_clipped_backward, setup=save_inputs)
def sign_clipped(x: Tensor) -> Tensor:
    """Sign whose gradient passes where ``abs(x) <= 1``."""
    return sign(x)


@operator("sign_bireal", backward=_bireal_backward, setup=save_inputs)
def sign_bireal(x: Tensor) -> Tensor:
    """Sign with the triangular gradient of Bi-Real Net, zero where ``abs(x) >= 1``."""
    return sign(x)


@operator("sign_ede", backward=_ede_backward, setup=save_inputs)
def sign_ede(x: Tensor, k: Tensor, t: Tensor) -> Tensor:
    """Sign with IR-Net's error-decay gradient; ``k`` and ``t`` are scalar tensors."""
    return sign(x)


@operator("sign_swish", backward=_swish_backward, setup=save_inputs)
def sign_swish(x: Tensor, beta: Tensor) -> Tensor:
    """Sign with the derivative of BNN+'s SignSwish; ``beta`` is a scalar tensor (5 in the paper).

    SS(x) = 2 sigmoid(b x) (1 + b x (1 - sigmoid(b x))) - 1; its slope changes sign at
    ``abs(b x) = 2.4``, so unlike the other rules it can push a far value back towards zero.
    """
    return sign(x)


def _scaled_clipped_backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
    return _clipped_backward(ctx, grad), None


@operator("scaled_sign_identity", backward=pass_to_first)
def scaled_sign_identity(x: Tensor, scale: Tensor) -> Tensor:
    """Return ``scale * sign(x)``; the gradient reaches ``x`` unchanged, so without the scale."""
    return (scale * sign(x)).to(x.dtype)


@operator("scaled_sign_clipped", backward=_scaled_clipped_backward, setup=save_first)
def scaled_sign_clipped(x: Tensor, scale: Tensor) -> Tensor:
    """Return ``scale * sign(x)``; the gradient passes where ``abs(x) <= 1``, without the scale."""
    return (scale * sign(x)).to(x.dtype)


@operator("round_levels", backward=pass_to_first)
def round_levels(x: Tensor, levels: int) -> Tensor:
    """Round to multiples of ``1 / levels``; the gradient passes unchanged."""
    # In half precision x * levels could overflow, or be rounded twice.
    wide = x.float() if x.dtype in (torch.float16, torch.bfloat16) else x
    return (torch.round(wide * levels) / levels).to(x.dtype)


def check_bits(bits: int) -> int:
    """Return ``bits`` if a quantiser can have that many, else raise."""
    if not isinstance(bits, int) or not 1 <= bits <= 16:
        raise ConfigError(f"bits={bits!r} is not a whole number from 1 to 16.")
    return bits


def quantize(x: Tensor, bits: int) -> Tensor:
    """DoReFa's quantiser of values in [0, 1] to ``2**bits - 1`` equal steps.

    q(x) = round((2^b - 1) x) / (2^b - 1); the gradient passes unchanged.

    >>> quantize(torch.tensor([0.2, 0.4, 0.9]), 2).tolist()
    [0.3333333432674408, 0.3333333432674408, 1.0]
    """
    return round_levels(x, 2 ** check_bits(bits) - 1)


def quantize_unit(x: Tensor, bits: int) -> Tensor:
    """DoReFa's activation quantiser: clip to [0, 1], then :func:`quantize`."""
    return quantize(x.clamp(0, 1), bits)
