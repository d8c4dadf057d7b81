"""Changes of colour, against Pillow and the standard library."""

import colorsys

import numpy as np
import pytest
import torch
from PIL import Image, ImageEnhance

from surge.data.colours import draw_colours, jitter, rotate_hue
from surge.data.croploader import CropSettings
from surge.errors import ConfigError

ALL = (0.4, 0.4, 0.4, 0.0)


def photographs(count=3, side=9):
    generator = torch.Generator().manual_seed(0)
    return torch.randint(0, 256, (count, 3, side, side), generator=generator).float()


@pytest.mark.parametrize(
    ("place", "enhance"),
    [(0, ImageEnhance.Brightness), (1, ImageEnhance.Contrast), (2, ImageEnhance.Color)],
    ids=["brightness", "contrast", "saturation"],
)
@pytest.mark.parametrize("draw", [-1.0, -0.3, 0.0, 0.9])
def test_each_change_is_pillows(place, enhance, draw):
    images = photographs()
    draws = torch.zeros(len(images), 4)
    draws[:, place] = draw
    found = jitter(images, draws, ALL)
    for image, ours in zip(images, found, strict=True):
        picture = Image.fromarray(image.permute(1, 2, 0).numpy().astype(np.uint8))
        wanted = np.asarray(enhance(picture).enhance(1 + 0.4 * draw)).astype(np.float32)
        assert (
            np.abs(ours.permute(1, 2, 0).numpy() - wanted).max() < 1.6
        )  # Pillow rounds on its way


@pytest.mark.parametrize("turn", [-0.1, 0.0, 0.03, 0.5])
def test_hue_is_the_standard_librarys(turn):
    images = photographs(2, 6)
    images[0, :, 0, 0] = 77.0  # a grey pixel has no hue
    found = rotate_hue(images, torch.full((2, 1, 1), turn))
    for image, ours in zip(images, found, strict=True):
        for pixel, got in zip(image.flatten(1).T, ours.flatten(1).T, strict=True):
            hue, saturation, value = colorsys.rgb_to_hsv(*(pixel / 255).tolist())
            wanted = colorsys.hsv_to_rgb((hue + turn) % 1, saturation, value)
            assert got.tolist() == pytest.approx([255 * w for w in wanted], abs=0.01)


def test_no_draw_changes_nothing():
    images = photographs()
    torch.testing.assert_close(
        jitter(images, torch.zeros(3, 4), (0.2, 0.2, 0.2, 0.1)), images, rtol=0, atol=1e-3
    )


def test_images_of_a_batch_do_not_touch_each_other():
    images, draws = photographs(), draw_colours(3, 0, 0)
    together = jitter(images, draws, (0.2, 0.2, 0.2, 0.1))
    for place in range(3):
        part = slice(place, place + 1)
        torch.testing.assert_close(
            jitter(images[part], draws[part], (0.2, 0.2, 0.2, 0.1)), together[part]
        )
    assert together.min() >= 0 and together.max() <= 255.001


def test_draws_depend_on_seed_and_epoch_alone():
    assert torch.equal(draw_colours(6, 1, 2), draw_colours(6, 1, 2))
    assert not torch.equal(draw_colours(6, 1, 2), draw_colours(6, 2, 1))
    assert draw_colours(1000, 0, 0).abs().max() <= 1


@pytest.mark.parametrize("jitter", [(0.1,), (0.1, 0.1, 0.1, -0.1)])
def test_wrong_strengths_are_refused(jitter):
    with pytest.raises(ConfigError, match="brightness, contrast, saturation and hue"):
        CropSettings(32, train=True, jitter=jitter)
