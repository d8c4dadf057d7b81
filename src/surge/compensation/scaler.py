"""The adaptive gradient scaler (AGS): one number per layer, renewed once per optimizer step."""

import math

import torch
from torch import Tensor

from surge.compensation.dual_path import squared_norm
from surge.ranks import count_ranks

EPSILON = 1e-8
LARGEST = 1e4


def initial_scale(weight: Tensor) -> float:
    """Return ``1 / sqrt(number of auxiliary weights)``."""
    return 1 / math.sqrt(max(weight.numel(), 1))


def updated_scale(
    scale: Tensor,
    main_square: Tensor,
    auxiliary_square: Tensor,
    eta: Tensor | float,
    *,
    reading: str = "unscaled",
) -> Tensor:
    """Return ``eta * |g_b| / (|g_a| + 1e-8)`` for each layer, from the squared norms.

    A layer keeps its scale where that is not finite or g_a is zero, so that an overflowed step
    or an idle layer cannot poison it. With ``reading="scaled"`` the norm in the denominator is
    that of ``scale * g_a``; iterating that literally oscillates with period two, so its fixed
    point ``sqrt(eta * |g_b| / |g_a|)`` is taken directly.

    >>> updated_scale(torch.tensor([0.5]), torch.tensor([4.0]), torch.tensor([1.0]), 0.01)
    tensor([0.0200])
    """
    ratio = eta * main_square.sqrt() / (auxiliary_square.sqrt() + EPSILON)
    if reading == "scaled":
        ratio = ratio.sign() * ratio.abs().sqrt()
    usable = torch.isfinite(ratio) & torch.isfinite(auxiliary_square) & (auxiliary_square > 0)
    return torch.where(usable, ratio.clamp(-LARGEST, LARGEST), scale)


def followed_scale(scale: Tensor, growth: Tensor, *, reading: str = "unscaled") -> Tensor:
    """Return the scale for a g_a that became ``growth`` times as large since its norm was taken.

    It is kept where that is not finite or zero.

    >>> followed_scale(torch.tensor(0.5), torch.tensor(10.0))
    tensor(0.0500)
    """
    factor = growth.sqrt() if reading == "scaled" else growth
    usable = torch.isfinite(factor) & (factor > 0)
    return torch.where(usable, (scale / factor).clamp(-LARGEST, LARGEST), scale)


def summed_over_ranks(sums: Tensor) -> Tensor:
    """Add the squared norms of all layers over all ranks, in one small all-reduce."""
    count = count_ranks()
    if count == 1:
        return sums
    torch.distributed.all_reduce(sums)
    # Gradients are averaged over ranks, so that every local one was too large by their number.
    return sums / count**2


def squares_over_ranks(probes: list[Tensor], device: torch.device) -> Tensor:
    """Return the squared norms of what weight-sized probes hold, which adds up over ranks first.

    One all-reduce for all of them, as large as they are.
    """
    held = [p.grad if p.grad is not None else torch.zeros_like(p) for p in probes]
    held = [gradient.to(device) for gradient in held]
    count = count_ranks()
    if count > 1:
        whole = torch.cat([gradient.float().flatten() for gradient in held])
        torch.distributed.all_reduce(whole)
        held = list(torch.split(whole / count, [gradient.numel() for gradient in held]))
    return torch.stack([squared_norm(gradient) for gradient in held])


def cosine_decay(epoch: int, epochs: int) -> float:
    """Return the factor that falls from 1 to 0 along half a cosine."""
    return 0.5 * (1 + math.cos(math.pi * min(epoch / epochs, 1.0)))
