"""Arms of one seed are paired: the same W_b, the same images, the same crops, bit for bit."""

import pytest
import torch

from surge.recipes import get_recipe
from surge.recipes.variants import VARIANTS
from surge.train.build import build_network, make_loaders
from surge.train.distributed import World
from tests.train.small import CPU, make_trainer, small_recipe, small_sets

MODELS = ("resnet20", "resnet18", "vggsmall")
SURGES = ["surge", *(f"surge-{variant}" for variant in VARIANTS if variant)]


def own_weights(name, seed=0, shape=(3, 32, 32)):
    """Everything that is not the auxiliary path's."""
    recipe = get_recipe(name)
    model, _ = build_network(recipe, seed, torch.zeros(2, *shape))
    return {key: t for key, t in model.state_dict().items() if ".auxiliary." not in key}


def assert_equal(first, second):
    assert list(first) == list(second)
    for name, tensor in first.items():
        assert torch.equal(second[name], tensor), name


@pytest.mark.parametrize("model", MODELS)
def test_plain_and_surge_start_from_the_same_weights(model):
    assert_equal(own_weights(f"cifar10-{model}-recu"), own_weights(f"cifar10-{model}-recu-surge"))


@pytest.mark.parametrize("suffix", SURGES)
def test_every_variant_starts_from_the_same_weights(suffix):
    shape = (1, 8, 8)
    plain = own_weights("digits-cnn-recu", shape=shape)
    assert_equal(plain, own_weights(f"digits-cnn-recu-{suffix}", shape=shape))


def test_start_weights_depend_on_the_seed_and_on_nothing_before():
    shape = (1, 8, 8)
    first = own_weights("digits-cnn-recu-surge", seed=1, shape=shape)
    torch.manual_seed(99)
    torch.rand(7)
    assert_equal(first, own_weights("digits-cnn-recu-surge", seed=1, shape=shape))
    other = own_weights("digits-cnn-recu-surge", seed=2, shape=shape)
    assert not torch.equal(first["features.conv2.weight"], other["features.conv2.weight"])


def test_building_leaves_the_random_state_of_the_caller():
    torch.manual_seed(3)
    expected = torch.rand(2)
    torch.manual_seed(3)
    own_weights("digits-cnn-recu-surge", shape=(1, 8, 8))
    assert torch.equal(torch.rand(2), expected)


def test_auxiliary_weights_differ_by_seed():
    shape = torch.zeros(2, 1, 8, 8)
    recipe = get_recipe("digits-cnn-recu-surge")
    first, second = (
        build_network(recipe, seed, shape)[0].features.conv2.auxiliary.weight for seed in (0, 1)
    )
    assert not torch.equal(first, second)


@pytest.mark.parametrize("suffix", SURGES)
def test_arms_see_the_same_batches_in_every_epoch(tmp_path, suffix):
    """The images that really reach the networks, while both train."""
    seen = {}
    for row in ("cnn-recu", f"cnn-recu-{suffix}"):
        recipe = small_recipe(row, epochs=2)
        trainer = make_trainer(tmp_path / row, recipe, save_every=1e9)
        trainer.meter = trainer.guide = None  # they look at a batch again
        batches = seen[row] = []
        trainer.parts.model.register_forward_pre_hook(
            lambda model, args, batches=batches: batches.append(args[0].clone())
        )
        trainer.run()
    plain, surged = seen.values()
    assert len(plain) == len(surged) == 2 * (3 + 1)
    assert all(torch.equal(a, b) for a, b in zip(plain, surged, strict=True))
    assert not torch.equal(plain[0], plain[4])  # another order in the second epoch


def test_crops_and_flips_are_the_same_for_every_arm():
    sets = small_sets(64, 8)
    batches = []
    for name in ("cifar10-resnet20-recu", "cifar10-resnet20-recu-surge-tied"):
        loader, _ = make_loaders(get_recipe(name), sets, 5, CPU, World())
        assert loader.augmentation is not None
        batches.append([images for images, _ in loader.batches(3)])
    assert all(torch.equal(a, b) for a, b in zip(*batches, strict=True))


def test_test_images_are_never_augmented():
    _, loader = make_loaders(get_recipe("cifar10-resnet20-recu"), small_sets(), 0, CPU, World())
    assert loader.augmentation is None
    assert not loader.shuffle


@pytest.mark.parametrize("model", MODELS)
def test_methods_share_the_float_weights_too(model):
    """Rows of different methods differ in the method's own parameters alone."""
    first = own_weights(f"cifar10-{model}-bnn")
    second = own_weights(f"cifar10-{model}-recu")
    for name, tensor in first.items():
        assert torch.equal(second[name], tensor), name
