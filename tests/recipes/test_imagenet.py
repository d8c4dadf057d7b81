"""Rows of ImageNet: what they cost, what the papers say, and how Imagenette shortens them."""

import warnings
from functools import lru_cache

import pytest
import torch
from torch import nn

import surge
from surge.compensation.options import PathOptions
from surge.errors import ConfigError, SurgeWarning
from surge.models import build_model
from surge.recipes import get_recipe, list_recipes, overridden
from surge.recipes.recipe import TrainSpec
from surge.train.build import is_decayed, parameter_groups
from surge.train.schedule import learning_rate

FULL = [get_recipe(name) for name in list_recipes("imagenet")]
SHORT = [get_recipe(name) for name in list_recipes("imagenette")]
REAL_MACS, BODY, BINARY = 137_793_536, 1_676_279_808, 10_985_472
EXTRAS = {"bireal_resnet18": 0, "reactnet_resnet18": 14_912, "recu_resnet18": 2 * 512}
"""Parameters beyond the 11,689,512 of ResNet-18, scales of methods left aside."""


def network(recipe, device="meta"):
    """The network of a row, without storage unless it is really to run."""
    return _network(recipe.name, device)


@lru_cache
def _network(name, device):
    recipe = get_recipe(name)
    options = {k: v for k, v in recipe.model.options.items() if k != "start"}
    with torch.device(device), warnings.catch_warnings():
        warnings.simplefilter("ignore", SurgeWarning)
        model = build_model(recipe.model.name, **options)
        if recipe.method is not None:
            method = recipe.method
            surge.binarize_(model, method.name, skip=method.skip, **method.options)
    return model


@pytest.mark.parametrize("recipe", FULL, ids=lambda recipe: recipe.row)
def test_every_row_costs_what_the_table_says(recipe):
    # RBNN's rotations need numbers.
    device = "cpu" if "rbnn" in recipe.row else "meta"
    found = surge.summary(network(recipe, device), torch.zeros(1, 3, 224, 224, device=device))
    if recipe.method is None:
        assert found.bops == 0
        if recipe.model.name == "resnet18":
            assert found.macs_with_norms_and_pools == 1_819_066_368
        return
    assert found.macs == 1_814_073_344
    bits = next(row.bits for row in found.rows if row.kind == "BinaryConv2d")
    if recipe.row == "twostage-stage1":
        assert bits == (32, 1) and found.binary == 0
        return
    assert found.ops == REAL_MACS + bits[0] * bits[1] * BODY / 64
    wanted = {"dorefa": (2.42e8, 2.44e8), "tbn": (1.89e8, 1.91e8)}
    low, high = wanted.get(recipe.method.name, (1.63e8, 1.641e8))
    assert low < found.ops < high
    assert found.binary == BINARY


@pytest.mark.parametrize("recipe", FULL, ids=lambda recipe: recipe.row)
def test_every_row_has_the_parameters_of_its_network(recipe):
    model = network(recipe)
    own = sum(p.numel() for n, p in model.named_parameters() if ".method." not in n)
    shifts = sum(p.numel() for n, p in model.named_parameters() if n.endswith(".method.shift"))
    if recipe.method is None:
        assert own == {"resnet18": 11_689_512, "resnet34": 21_797_672}[recipe.model.name]
    else:
        assert own + shifts == 11_689_512 + EXTRAS[recipe.model.name]


@pytest.mark.parametrize("recipe", FULL, ids=lambda recipe: recipe.row)
def test_stem_shortcuts_and_head_stay_float(recipe):
    if recipe.method is not None:
        kinds = {name: type(m).__name__ for name, m in network(recipe).named_modules()}
        assert list(kinds.values()).count("BinaryConv2d") == 16
        assert kinds["conv1"] == "Conv2d" and kinds["fc"] == "Linear"
        assert all(kinds[n] != "BinaryConv2d" for n in kinds if "downsample" in n)


@pytest.mark.parametrize(
    "row, paper",
    [
        ("onestage-dorefa-w1a4", 59.2),
        ("onestage-bireal", 56.4),
        ("onestage-rbonn", 61.4),
        ("onestage-reactnet", None),
        ("onestage-reactnet-surge", 62.0),
        ("onestage-reactnet-surge-1x1", None),
        ("onestage-rbonn-surge", None),
        ("twostage-reactnet", 65.9),
        ("twostage-reactnet-surge", 66.7),
        ("resnet18-float", 69.6),
    ],
)
def test_paper_values_belong_to_their_rows(row, paper):
    assert get_recipe(f"imagenet-{row}").paper == paper
    assert get_recipe(f"imagenette-{row}").paper is None


def test_surge_on_imagenet_has_the_papers_eta():
    assert get_recipe("imagenet-onestage-reactnet-surge").surge == PathOptions(eta=1e-3)
    star = get_recipe("imagenet-onestage-reactnet-surge-1x1").surge
    assert star == PathOptions(eta=1e-3, auxiliary="pointwise")
    copied = get_recipe("imagenet-twostage-reactnet-surge").surge
    assert copied == PathOptions(eta=1e-3, auxiliary="copied")


def test_one_stage_is_what_the_paper_says():
    recipe = get_recipe("imagenet-onestage-reactnet-surge")
    train = recipe.train
    assert (train.optimizer, train.lr, train.weight_decay) == ("adam", 5e-4, 1e-5)
    assert (train.epochs, train.schedule, train.batch) == (200, "cosine", 512)
    assert learning_rate(train, 0) == 5e-4 and learning_rate(train, 100) == pytest.approx(2.5e-4)
    assert recipe.data.size == 224 and recipe.data.lighting and recipe.data.stored is None


def test_two_stages_decay_only_the_first_and_end_linearly():
    first, second = (get_recipe(f"imagenet-twostage-{row}").train for row in ("stage1", "reactnet"))
    assert (first.weight_decay, second.weight_decay) == (1e-5, 0.0)
    assert [learning_rate(second, e) for e in (0, 128)] == [5e-4, 2.5e-4]
    assert learning_rate(second, 255) == pytest.approx(5e-4 / 256)


def test_irnet_warms_up_and_drops_three_times():
    train = get_recipe("imagenet-onestage-irnet").train
    rates = [learning_rate(train, e) for e in (0, 3, 29, 30, 60, 90, 99)]
    assert rates == pytest.approx([0.2, 0.8, 0.8, 0.08, 0.008, 8e-4, 8e-4])
    assert train.nesterov and train.sync_norm and train.batch == 2048


def test_recu_crops_up_to_a_quarter_more():
    assert get_recipe("imagenet-onestage-recu").data.scale == (0.08, 1.25)
    assert get_recipe("imagenet-onestage-bireal").data.scale == (0.08, 1.0)


@pytest.mark.parametrize("recipe", SHORT, ids=lambda recipe: recipe.row)
def test_imagenette_has_the_same_rows_shorter(recipe):
    full = get_recipe(f"imagenet-{recipe.row}")
    assert (recipe.method, recipe.surge, recipe.distill) == (full.method, full.surge, full.distill)
    assert recipe.model.options == {"classes": 10, **full.model.options}
    assert (recipe.data.size, recipe.data.stored) == (128, 96)
    assert (recipe.train.epochs, recipe.train.batch) == (100, 128)
    sgd = recipe.train.optimizer == "sgd"
    assert recipe.train.lr == full.train.lr * (128 / full.train.batch if sgd else 1)


def test_size_and_batch_can_be_chosen():
    recipe = overridden(get_recipe("imagenette-onestage-bireal"), {"size": 224, "batch": 256})
    assert (recipe.data.size, recipe.train.batch) == (224, 256)
    with pytest.raises(ConfigError, match="has no setting eta"):
        overridden(recipe, {"eta": 1.0})


def named_groups(rule, model, **spec):
    chosen = TrainSpec(decayed=rule, weight_decay=0.5, **spec)
    names = {id(p): n for n, p in model.named_parameters()}
    groups = parameter_groups(model, chosen)
    assert sum(len(group["params"]) for group in groups) == len(names)
    return {names[id(p)]: group["weight_decay"] for group in groups for p in group["params"]}


def test_reactnets_rule_decays_kernels_and_shifts():
    recipe = get_recipe("imagenet-onestage-reactnet-surge")
    decay = named_groups("kernels", network(recipe))
    block = "stages.1.0"
    for name in ("conv.weight", "conv.method.shift", "act.shift_in", "act.shift_out"):
        assert decay[f"{block}.{name}"] == 0.5
    assert decay[f"{block}.downsample.1.weight"] == decay["conv1.weight"] == 0.5
    for name in ("bn.weight", "bn.bias", "act.slope", "downsample.2.weight"):
        assert decay[f"{block}.{name}"] == 0.0
    assert decay["fc.weight"] == decay["fc.bias"] == decay["bn1.weight"] == 0.0


def test_recus_rule_decays_by_name_and_leaves_shortcuts():
    decay = named_groups("conv_fc", network(get_recipe("imagenet-onestage-recu")))
    for name in (
        "conv1.weight",
        "fc.bias",
        "stages.0.0.conv.weight",
        "stages.0.0.conv.method.alpha",
    ):
        assert decay[name] == 0.5
    for name in (
        "bn1.weight",
        "bn2.weight",
        "stages.1.0.downsample.0.weight",
        "stages.0.0.bn.bias",
    ):
        assert decay[name] == 0.0


def test_rbonns_recurrence_keeps_its_own_group():
    model = network(get_recipe("imagenet-onestage-rbonn"))
    decay = named_groups("kernels", model)
    assert decay["stages.0.0.conv.method.recurrence"] == 0.0
    assert decay["stages.0.0.conv.method.scale"] == 0.5
    groups = parameter_groups(model, TrainSpec(decayed="kernels"))
    assert sorted({group["lr_factor"] for group in groups}) == [0.1, 1.0]


def test_everything_decays_by_default():
    assert is_decayed("bn.weight", nn.Parameter(torch.zeros(2)), TrainSpec())
