"""Pictures resized together are those that torch resizes one by one."""

import pytest
import torch
import torch.nn.functional as F

from surge.data.resizing import filters, resized
from surge.data.voc_loader import stacked

OLD = ((40, 30), (50, 37), (33, 48), (50, 20))
"""Widths and heights."""
NEW = ((64, 48), (25, 18), (33, 48), (20, 61))


@pytest.mark.parametrize("flips", [(False,) * 4, (True, False, True, True)])
def test_pictures_of_a_batch_are_those_resized_alone(flips):
    pictures = [torch.randint(0, 256, (3, height, width)).float() for width, height in OLD]
    together = stacked(pictures)
    sides = [torch.tensor(side) for side in (*zip(*OLD, strict=True), *zip(*NEW, strict=True))]
    columns = filters(sides[0], sides[2], together.shape[3], 64, torch.tensor(flips))
    rows = filters(sides[1], sides[3], together.shape[2], 64, torch.zeros(4, dtype=torch.bool))
    found = resized(together, rows, columns)
    for image, picture in enumerate(pictures):
        width, height = NEW[image]
        expected = F.interpolate(
            picture[None], size=(height, width), mode="bilinear", antialias=True
        )[0]
        expected = expected.flip(2) if flips[image] else expected
        torch.testing.assert_close(found[image, :, :height, :width], expected, atol=1e-3, rtol=1e-5)
        assert not found[image, :, height:].any() and not found[image, :, :, width:].any()
    assert torch.equal(
        found[2, :, :48, :33].flip(2) if flips[2] else found[2, :, :48, :33], pictures[2]
    )
