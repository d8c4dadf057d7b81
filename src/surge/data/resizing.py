"""Pictures of different sizes, resized together: two products with small matrices.

Bilinear with the width of the filter fitted to the step, as ``F.interpolate(antialias=True)`` has
it; a mirrored picture has a mirrored matrix, and its padding is zero.
"""

import torch
from torch import Tensor


def filters(
    old: Tensor,
    new: Tensor,
    width: int,
    length: int,
    mirrored: Tensor,
    dtype: torch.dtype = torch.float32,
) -> Tensor:
    """Return ``[N, length, width]``: what each new pixel takes of each old one, along one axis.

    Args:
        old: pixels before, ``[N]``; there are ``width`` at most.
        new: pixels after, ``[N]``; the rest of ``length`` takes nothing.
        width: of the padded pictures before.
        length: of the padded pictures after.
        mirrored: which pictures are turned round along this axis, ``[N]``.
        dtype: of the result.

    >>> filters(*(torch.tensor([n]) for n in (2, 4)), 2, 5, torch.tensor([False])).tolist()
    [[[1.0, 0.0], [0.75, 0.25], [0.25, 0.75], [0.0, 1.0], [0.0, 0.0]]]
    """
    before, after = (sides.to(dtype)[:, None, None] for sides in (old, new))
    place = torch.arange(length, device=old.device, dtype=dtype)[:, None]
    source = torch.arange(width, device=old.device, dtype=dtype)
    inside = (place < after) & (source < before)
    place = torch.where(mirrored[:, None, None], after - 1 - place, place)
    step = before / after
    reach = (source + 0.5 - step * (place + 0.5)).abs() / step.clamp(min=1)
    share = torch.where(inside, (1 - reach).clamp(min=0), 0.0)
    return share / share.sum(dim=2, keepdim=True).clamp(min=torch.finfo(share.dtype).tiny)


def resized(pictures: Tensor, rows: Tensor, columns: Tensor) -> Tensor:
    """Return pictures ``[N, C, h, w]`` as ``[N, C, H, W]`` by filters of both axes."""
    with torch.autocast(pictures.device.type, enabled=False):
        wide = pictures.flatten(1, 2) @ columns.transpose(1, 2)
        wide = wide.view(*pictures.shape[:3], -1).transpose(1, 2).flatten(2)
        high = (rows @ wide).view(len(pictures), rows.shape[1], pictures.shape[1], -1)
    return high.transpose(1, 2)
