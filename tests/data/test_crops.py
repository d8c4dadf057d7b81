"""Boxes and resampling against Pillow, torch and the formulas."""

import math

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from PIL import Image

from surge.data.crops import (
    EIGENVALUES,
    EIGENVECTORS,
    RATIO,
    central_box,
    draw_crops,
    lighten,
    lighting_basis,
    random_boxes,
    resample,
)
from surge.data.pictures import as_tensor, central
from tests.data.trees import picture

NO = torch.tensor([False])


def as_batch(image):
    return as_tensor(image)[None]


@pytest.mark.parametrize("box", [(0, 0, 40, 48), (3, 5, 20, 17), (7, 0, 33, 48), (10, 11, 3, 4)])
@pytest.mark.parametrize("size", [24, 40, 96])
def test_resample_equals_pillow_crop_and_resize(box, size):
    image = picture(40, 48)
    top, left, down, across = box
    cut = image.crop((left, top, left + across, top + down))
    wanted = as_tensor(cut.resize((size, size), Image.Resampling.BILINEAR)).float()
    found = resample(as_batch(image), torch.tensor([box]).float(), NO, size)[0]
    # Pillow rounds to whole levels after each of two passes.
    assert (found - wanted).abs().max() <= 1.01


@pytest.mark.parametrize("size", [24, 96])
def test_resample_equals_torch_interpolation(size):
    image = as_batch(picture(40, 48)).float()
    wanted = F.interpolate(image[:, :, 3:33, 5:45], (size, size), mode="bilinear", antialias=True)
    found = resample(image, torch.tensor([[3.0, 5.0, 30.0, 40.0]]), NO, size)
    torch.testing.assert_close(found, wanted, rtol=0, atol=1e-3)


def test_flip_mirrors_the_crop():
    image, box = as_batch(picture(40, 48)), torch.tensor([[3.0, 5.0, 30.0, 20.0]])
    plain, mirrored = (resample(image, box, torch.tensor([flip]), 32) for flip in (False, True))
    torch.testing.assert_close(mirrored, plain.flip(3))


@pytest.mark.parametrize("side, size", [(96, 96), (96, 128), (64, 32)])
def test_central_box_is_resize_and_center_crop(side, size):
    image = picture(side, side)
    wanted = as_tensor(central(image, round(size * 256 / 224), size)).float()
    start, extent = central_box(side, size)
    box = torch.tensor([[start, start, extent, extent]])
    found = resample(as_batch(image), box, NO, size, whole=True)[0]
    assert (found - wanted).abs().max() <= 1.01


def test_central_is_resize_256_and_center_crop_224():
    image = picture(300, 400)
    resized = image.resize((341, 256), Image.Resampling.BILINEAR)
    wanted = resized.crop((58, 16, 58 + 224, 16 + 224))
    assert np.array_equal(np.array(central(image, 256, 224)), np.array(wanted))


def literal_box(draws, height, width):
    """The rule for one image, try by try."""
    for share, shape in zip(draws[0:20:2], draws[1:20:2], strict=True):
        area = height * width * (0.08 + share * 0.92)
        ratio = math.exp(math.log(3 / 4) + shape * (math.log(4 / 3) - math.log(3 / 4)))
        across, down = round(math.sqrt(area * ratio)), round(math.sqrt(area / ratio))
        if across <= width and down <= height:
            top = min(int(draws[20] * (height - down + 1)), height - down)
            left = min(int(draws[21] * (width - across + 1)), width - across)
            return [top, left, down, across]
    return None


def test_boxes_are_those_of_the_rule():
    draws, _ = draw_crops(500, 0, 0)
    boxes = random_boxes(draws, 60, 80)
    wanted = [literal_box(row, 60, 80) for row in draws.tolist()]
    assert None not in wanted
    assert boxes.tolist() == wanted
    top, left, down, across = boxes.unbind(1)
    assert (top + down).max() == 60 and (left + across).max() == 80
    assert top.min() == 0 and left.min() == 0


def test_where_no_box_fits_the_middle_is_taken():
    draws = torch.rand(5, 22)
    boxes = random_boxes(draws, 20, 200, scale=(2.0, 2.0))
    width = round(20 * RATIO[1])
    assert boxes.tolist() == [[0, (200 - width) // 2, 20, width]] * 5
    assert random_boxes(draws, 50, 50, scale=(2.0, 2.0))[0].tolist() == [0, 0, 50, 50]


def test_scale_above_one_only_draws_again():
    boxes = random_boxes(draw_crops(2000, 0, 0)[0], 64, 64, scale=(0.08, 1.25))
    assert (boxes[:, 2:] <= 64).all()


def test_draws_depend_on_seed_and_epoch_alone():
    first, normals = draw_crops(6, 1, 2)
    assert torch.equal(first, draw_crops(6, 1, 2)[0])
    assert not torch.equal(first, draw_crops(6, 2, 1)[0])
    assert normals.shape == (6, 3)


def test_lighting_is_the_public_codes():
    pixels = torch.randint(0, 256, (2, 3, 4, 4), dtype=torch.uint8)
    normals = torch.tensor([[0.1, -0.2, 0.3], [-2.0, 0.5, 0.0]])
    found = lighten(pixels.float(), normals, lighting_basis())
    for image, normal, out in zip(pixels.numpy(), normals.numpy(), found, strict=True):
        shift = np.array(EIGENVECTORS) @ (np.array(EIGENVALUES) * normal)
        wanted = np.clip(np.trunc(image + shift[:, None, None]), 0, 255)
        assert np.array_equal(out.numpy(), wanted)
    lowered = pixels.float() - found
    assert set(lowered.unique().tolist()) <= {0.0, 1.0} and lowered.max() == 1
