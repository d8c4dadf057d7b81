import pytest
import torch

from surge.data import IMAGENET, Augmentation, Normalization, crop_flip, epoch_plan, normalize
from surge.errors import ConfigError
from tests.data.slow import slow_crop_flip


def random_pixels(*shape):
    return torch.randint(0, 256, shape, dtype=torch.uint8)


def test_crop_flip_covers_every_cifar_window():
    offsets = torch.cartesian_prod(torch.arange(9), torch.arange(9)).repeat(2, 1)
    flips = torch.arange(162) >= 81
    images = random_pixels(162, 3, 32, 32)
    assert torch.equal(crop_flip(images, offsets, flips), slow_crop_flip(images, offsets, flips, 4))


def test_crop_flip_in_the_middle_without_flip_is_the_image():
    images = random_pixels(3, 3, 32, 32)
    centre = torch.full((3, 2), 4)
    assert torch.equal(crop_flip(images, centre, torch.zeros(3, dtype=torch.bool)), images)


def test_crop_flip_leaves_its_input_alone():
    images = random_pixels(4, 3, 32, 32)
    before = images.clone()
    plan = epoch_plan(4, 0, 0)
    crop_flip(images, plan.offsets, plan.flips)
    assert torch.equal(images, before)


def test_crop_flip_fills_with_black_not_with_the_mean():
    images = torch.full((1, 3, 32, 32), 255, dtype=torch.uint8)
    corner = crop_flip(images, torch.zeros(1, 2, dtype=torch.int64), torch.tensor([False]))
    batch = normalize(corner, *IMAGENET.constants())
    black = torch.tensor([-0.485 / 0.229, -0.456 / 0.224, -0.406 / 0.225])
    torch.testing.assert_close(batch[0, :, 0, 0], black)


def test_crop_flip_of_no_images_is_no_images():
    out = crop_flip(
        random_pixels(0, 3, 32, 32), torch.zeros(0, 2).long(), torch.zeros(0, dtype=torch.bool)
    )
    assert out.shape == (0, 3, 32, 32)


def test_crop_flip_compiles_as_one_graph():
    images = random_pixels(8, 3, 32, 32)
    plan = epoch_plan(8, 0, 0)
    compiled = torch.compile(crop_flip, fullgraph=True, backend="aot_eager")
    expected = crop_flip(images, plan.offsets, plan.flips)
    assert torch.equal(compiled(images, plan.offsets, plan.flips), expected)


def test_normalize_equals_scaling_subtracting_dividing():
    images = random_pixels(4, 3, 5, 5)
    mean = torch.tensor(IMAGENET.mean).view(3, 1, 1)
    std = torch.tensor(IMAGENET.std).view(3, 1, 1)
    batch = normalize(images, *IMAGENET.constants())
    assert batch.dtype == torch.float32
    torch.testing.assert_close(batch, (images / 255 - mean) / std, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_normalize_rounds_once_to_low_precision(dtype):
    images = random_pixels(4, 3, 5, 5)
    full = normalize(images, *IMAGENET.constants())
    assert torch.equal(normalize(images, *IMAGENET.constants(), dtype=dtype), full.to(dtype))


def test_normalize_gives_the_memory_format_asked_for():
    batch = normalize(
        random_pixels(2, 3, 5, 5), *IMAGENET.constants(), memory_format=torch.channels_last
    )
    assert batch.is_contiguous(memory_format=torch.channels_last)


@pytest.mark.parametrize(
    "wrong",
    [
        {"mean": (), "std": ()},
        {"mean": (0.5,), "std": (0.5, 0.5)},
        {"mean": (0.5,), "std": (0.0,)},
        {"mean": (0.5,), "std": (0.5,), "maximum": 0.0},
    ],
)
def test_normalization_refuses_constants_that_are_no_map(wrong):
    with pytest.raises(ConfigError):
        Normalization(**wrong)


def test_augmentation_refuses_negative_padding():
    with pytest.raises(ConfigError, match="padding=-1"):
        Augmentation(padding=-1)


@pytest.mark.gpu
def test_crop_flip_and_normalize_on_the_gpu_equal_the_cpu():
    images = random_pixels(256, 3, 32, 32)
    plan = epoch_plan(256, 0, 0)
    expected = crop_flip(images, plan.offsets, plan.flips)
    there = plan.to("cuda")
    crops = crop_flip(images.cuda(), there.offsets, there.flips)
    assert torch.equal(crops.cpu(), expected)
    batch = normalize(crops, *IMAGENET.constants("cuda")).cpu()
    torch.testing.assert_close(batch, normalize(expected, *IMAGENET.constants()), rtol=0, atol=1e-6)


@pytest.mark.gpu
def test_crop_flip_on_the_gpu_is_compiled_right():
    images = random_pixels(64, 3, 32, 32)
    plan = epoch_plan(64, 0, 0)
    there = plan.to("cuda")
    compiled = torch.compile(crop_flip, fullgraph=True)
    crops = compiled(images.cuda(), there.offsets, there.flips)
    assert torch.equal(crops.cpu(), crop_flip(images, plan.offsets, plan.flips))
