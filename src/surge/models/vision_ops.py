"""torchvision with working operators, on any torch.

Detection needs two of torchvision's compiled operators. Where its library does not load (a build
for CUDA next to a torch for the CPU), importing torchvision fails; :func:`vision` then defines
both in plain torch before the import, with the same results within 1e-4.
"""

import importlib
import importlib.util
import sys
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from surge.errors import MissingDependencyError
from surge.models.boxes import overlaps

SCHEMAS = (
    "nms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
    "qnms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
    "roi_align(Tensor input, Tensor rois, float spatial_scale, int pooled_height, "
    "int pooled_width, int sampling_ratio, bool aligned) -> Tensor",
)
"""What the import of torchvision and its Faster R-CNN touch; ``qnms`` is never called."""
APART = "vision"
"""Folder of an environment where `make setup` keeps torchvision away from packages that would
import it, and fail; it is looked for there last."""
BLOCK = 1024
"""Boxes that are compared with each other at a time."""
POINTS = 1 << 24
"""Numbers that are sampled from the feature maps at a time."""
NOWHERE = -3.0
"""A place where ``grid_sample`` finds nothing."""

_defined: list[torch.library.Library] = []  # an operator lives as long as its library object


def vision() -> Any:
    """Return torchvision, its operators compiled or in plain torch.

    Raises:
        MissingDependencyError: torchvision is not installed.
    """
    if "torchvision" in sys.modules:
        return sys.modules["torchvision"]
    if importlib.util.find_spec("torchvision") is not None:
        return _imported()
    apart = str(Path(sys.prefix) / APART)
    sys.path.insert(0, apart)
    try:
        return _imported()
    finally:
        sys.path.remove(apart)


def _imported() -> Any:
    spec = importlib.util.find_spec("torchvision")
    if spec is None or spec.origin is None:
        raise MissingDependencyError(
            "Detection needs torchvision: pip install 'surge-bnn[vision]', or in a checkout "
            f"`make setup`, which puts it into {Path(sys.prefix) / APART}."
        )
    if _compiled_loads(Path(spec.origin).parent):
        return importlib.import_module("torchvision")
    if not _defined:
        _define()
    for name in [n for n in sys.modules if n.startswith("torchvision.")]:
        del sys.modules[name]  # left by an import that failed
    package = importlib.import_module("torchvision")
    # From here on torchvision believes that its library has loaded, and calls what we defined.
    for module in ("torchvision.extension", "torchvision.ops.roi_align"):
        vars(sys.modules[module])["_has_ops"] = _has_ops
    return package


def compiled() -> bool:
    """Return whether the operators that :func:`vision` found are torchvision's own."""
    vision()
    return not _defined


def _has_ops() -> bool:
    return True


def _compiled_loads(folder: Path) -> bool:
    for suffix in EXTENSION_SUFFIXES:
        path = folder / f"_C{suffix}"
        if path.is_file():
            try:
                torch.ops.load_library(str(path))  # type: ignore[no-untyped-call]
            except OSError:
                return False
            return True
    return False


def _define() -> None:
    library: Any = torch.library.Library("torchvision", "FRAGMENT")  # type: ignore[no-untyped-call]
    for schema in SCHEMAS:
        library.define(schema)
    for key in ("CPU", "CUDA"):
        library.impl("nms", nms, key)
    library.impl("roi_align", roi_align, "CompositeImplicitAutograd")
    _defined.append(library)


def nms(boxes: Tensor, scores: Tensor, threshold: float) -> Tensor:
    """Return the indices of the boxes that no better one overlaps too much, best first.

    A box goes if a kept one with a higher score overlaps it by more than ``threshold``. Within a
    block this is solved for all boxes at once: whoever is beaten by a survivor falls, repeated
    until nothing changes. The first k boxes are right after k rounds, so the end is the answer of
    the one-by-one rule; in practice it takes a handful.
    """
    order = scores.argsort(descending=True, stable=True)
    ranked = boxes[order].float()
    kept: list[Tensor] = []
    survivors: list[Tensor] = []
    for start in range(0, len(ranked), BLOCK):
        block = ranked[start : start + BLOCK]
        alive = torch.ones(len(block), dtype=torch.bool, device=boxes.device)
        for earlier in survivors:
            alive &= ~(overlaps(block, earlier) > threshold).any(dim=1)
        beats = (overlaps(block, block) > threshold).triu(diagonal=1)
        standing = alive
        while True:
            now = alive & ~(beats & standing[:, None]).any(dim=0)
            if torch.equal(now, standing):
                break
            standing = now
        survivors.append(block[standing])
        kept.append(order[start : start + BLOCK][standing])
    return torch.cat(kept) if kept else order


def roi_align(
    features: Tensor,
    rois: Tensor,
    spatial_scale: float,
    height: int,
    width: int,
    sampling_ratio: int,
    aligned: bool,
) -> Tensor:
    """Return ``[K, C, height, width]``: features averaged over each bin of each region.

    Regions with as many samples in a bin go through one call of ``grid_sample``, all images at
    once, which brings the gradient along.

    Args:
        features: ``[N, C, H, W]``.
        rois: ``[K, 5]``: index of the image, x1, y1, x2, y2.
        spatial_scale: from the coordinates of the boxes to those of the features.
        height: of the result.
        width: of the result.
        sampling_ratio: samples along one side of a bin; 0 or less takes one per feature pixel.
        aligned: the centre of the first pixel is (0.5, 0.5), not (0, 0).
    """
    maps = features if features.dtype == torch.float64 else features.float()
    corners = rois[:, 1:].to(maps.dtype) * spatial_scale - (0.5 if aligned else 0.0)
    start, extent = corners[:, :2], corners[:, 2:] - corners[:, :2]
    if not aligned:
        extent = extent.clamp(min=1.0)
    samples = torch.full_like(extent, sampling_ratio)
    if sampling_ratio <= 0:
        samples = (extent / extent.new_tensor([width, height])).ceil()
    kinds, kind_of = torch.unique(samples.long(), dim=0, return_inverse=True)
    pieces, places = [], []
    for number, (across, down) in enumerate(kinds.tolist()):
        if min(across, down) < 1:
            continue  # an empty region: zero
        columns, rows = width * across, height * down
        share = max(1, POINTS // (maps.shape[1] * rows * columns))
        for part in (kind_of == number).nonzero().flatten().split(share):
            image, seat = _seats(rois[part, 0].long())
            x = _looks(start[part, 0], extent[part, 0], columns, maps.shape[3])
            y = _looks(start[part, 1], extent[part, 1], rows, maps.shape[2])
            pair = torch.stack(
                [x[:, None, :].expand(-1, rows, -1), y[:, :, None].expand(-1, -1, columns)], dim=3
            )
            seats = int(seat.max()) + 1
            grid = pair.new_full((len(maps) * seats, rows, columns, 2), NOWHERE)
            grid = grid.index_copy(0, image * seats + seat, pair).view(len(maps), -1, columns, 2)
            means = F.avg_pool2d(F.grid_sample(maps, grid, align_corners=False), (down, across))
            means = means.view(*maps.shape[:2], seats, height, width).transpose(1, 2)
            pieces.append(means.flatten(0, 1).index_select(0, image * seats + seat))
            places.append(part)
    out = maps.new_zeros(len(rois), maps.shape[1], height, width)
    if pieces:
        out = out.index_copy(0, torch.cat(places), torch.cat(pieces))
    return out.to(features.dtype)


def _seats(images: Tensor) -> tuple[Tensor, Tensor]:
    """Return for every region its image, and how many regions before it have the same."""
    same = images[:, None] == images
    return images, same.tril(diagonal=-1).sum(dim=1)


def _looks(start: Tensor, extent: Tensor, count: int, side: int) -> Tensor:
    """Return ``[k, count]``: where ``grid_sample`` looks along one axis of ``side`` pixels.

    Up to one pixel outside a sample counts as on the border; farther away it is zero.
    """
    steps = (torch.arange(count, device=start.device, dtype=start.dtype) + 0.5) / count
    place = start[:, None] + extent[:, None] * steps
    outside = (place < -1) | (place > side)
    return torch.where(outside, NOWHERE, (2 * place.clamp(0, side - 1) + 1) / side - 1)
