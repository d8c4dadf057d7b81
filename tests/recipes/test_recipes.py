"""Every shipped recipe: names, values from the papers, overrides, near misses."""

from dataclasses import replace

import pytest

from surge.compensation.options import PathOptions
from surge.errors import ConfigError
from surge.method import get_method, list_methods
from surge.models import list_models
from surge.recipes import (
    DataSpec,
    MethodSpec,
    ModelSpec,
    Recipe,
    TrainSpec,
    get_recipe,
    list_recipes,
    overridden,
    tables,
    with_surge,
)
from surge.recipes.variants import SWEPT, VARIANTS, has_number, options_of, with_number

ALL = [get_recipe(name) for name in list_recipes()]
each = pytest.mark.parametrize("recipe", ALL, ids=lambda recipe: recipe.name)


@each
def test_recipe_names_what_exists(recipe):
    assert recipe.name == f"{recipe.table}-{recipe.row}"
    assert recipe.model.name in (*list_models(), "bert", "float_detector", "reactnet_detector")
    if recipe.method is not None:
        get_method(recipe.method.name)
    assert (recipe.surge is not None) == ("-surge" in recipe.row)
    assert (recipe.name.endswith(("-float", "-teacher"))) == (recipe.method is None)


@each
def test_surge_rows_differ_from_their_base_in_surge_alone(recipe):
    base, found, _ = recipe.name.partition("-surge")
    if found:
        plain = get_recipe(base)
        assert (recipe.model, recipe.data, recipe.train, recipe.method) == (
            plain.model,
            plain.data,
            plain.train,
            plain.method,
        )


def test_names_are_unique_and_tables_are_listed():
    assert len(set(list_recipes())) == len(list_recipes())
    assert {"cifar10", "common", "digits"} <= set(tables())
    assert all(name.startswith("digits-") for name in list_recipes("digits"))


@pytest.mark.parametrize("table", ["common", "digits"])
def test_rows_of_one_protocol_differ_in_their_method_alone(table):
    binary = [recipe for recipe in map(get_recipe, list_recipes(table)) if recipe.method]
    image_methods = {name for name in list_methods() if not get_method(name).for_transformers}
    assert {recipe.method.name for recipe in binary} == image_methods
    for recipe in binary:
        assert (recipe.train, recipe.data) == (binary[0].train, binary[0].data)
        clamped = recipe.method.name != "rad"  # whose loss judges what is not clamped yet
        assert recipe.model.options == ({} if clamped else {"activation": "none"})


def test_common_protocol_is_recus_but_for_its_length():
    recu = get_recipe("cifar10-resnet20-recu").train
    assert get_recipe("common-resnet20-recu").train == replace(recu, epochs=60)
    assert recu.label_smoothing == 0


@pytest.mark.parametrize(
    "row, paper",
    [
        ("resnet20-recu", 87.4),
        ("resnet20-recu-surge", 88.0),
        ("resnet20-recu-surge-clipped", 87.7),
        ("resnet18-recu-surge", 93.1),
        ("vggsmall-recu-surge", 92.5),
        ("vggsmall-float", 94.1),
        ("resnet20-bnn", None),
        ("resnet20-recu-surge-tied", None),
    ],
)
def test_paper_values_belong_to_their_rows(row, paper):
    assert get_recipe(f"cifar10-{row}").paper == paper


def test_surge_on_cifar10_has_the_papers_eta():
    assert get_recipe("cifar10-resnet20-recu-surge").surge == PathOptions(eta=0.01)


@pytest.mark.parametrize("variant", [name for name in VARIANTS if name])
def test_every_variant_stands_behind_every_binary_row(variant):
    recipe = get_recipe(f"cifar10-vggsmall-recu-surge-{variant}")
    assert recipe.row == f"vggsmall-recu-surge-{variant}"
    assert recipe.surge == VARIANTS[variant] != PathOptions()


def test_unknown_recipe_names_the_near_miss():
    with pytest.raises(ConfigError, match='Did you mean "cifar10-resnet20-recu"'):
        get_recipe("cifar10-resnet20-reku")


def test_unknown_variant_names_the_near_miss_and_all_others():
    with pytest.raises(ConfigError, match='no variant "tide". Did you mean "tied".* Known: dpgc,'):
        get_recipe("cifar10-resnet20-recu-surge-tide")
    with pytest.raises(ConfigError, match="Known: "):
        options_of("zzz")


@pytest.mark.parametrize(
    ("variant", "options"),
    [
        ("eta0.1", PathOptions(eta=0.1)),
        ("eta1e-4", PathOptions(eta=1e-4)),
        ("fixed0.05", PathOptions(fixed_scale=0.05)),
        ("noise-eta0.1", replace(VARIANTS["noise"], eta=0.1)),
        ("tied-eta0.05", replace(VARIANTS["tied"], eta=0.05)),
    ],
)
def test_variant_can_carry_a_number(variant, options):
    recipe = get_recipe(f"cifar10-resnet20-recu-surge-{variant}")
    assert recipe.surge == options
    assert recipe.row == f"resnet20-recu-surge-{variant}"


@pytest.mark.parametrize("variant", ["eta", "eta0.1.2", "tide-eta0.1", "eta0", "tied-fixed0.1"])
def test_variant_with_a_wrong_number_is_refused(variant):
    with pytest.raises(ConfigError):
        options_of(variant)


@pytest.mark.parametrize("value", [1e-4, 3e-7, 0.05, 1, 12345.5, 1e6])
def test_number_behind_a_row_is_read_back(value):
    for word, setting in SWEPT.items():
        row = with_number("resnet20-recu-surge", word, value)
        assert has_number(row) and not has_number("resnet20-recu-surge")
        assert getattr(get_recipe(f"cifar10-{row}").surge, setting) == value


def test_unknown_table_names_the_near_miss():
    with pytest.raises(ConfigError, match='no table "cifar". Did you mean "cifar10"'):
        list_recipes("cifar")


def test_float_row_has_no_surge():
    with pytest.raises(ConfigError, match="a float model has no binary layer"):
        with_surge(get_recipe("digits-cnn-float"))


def test_overrides_reach_their_part_of_the_recipe():
    base = get_recipe("cifar10-resnet20-recu-surge")
    changes = {"epochs": 3, "held_out": True, "limit": 64, "eta": 0.5, "precision": "fp32"}
    changed = overridden(base, changes)
    assert (changed.train.epochs, changed.train.precision) == (3, "fp32")
    assert (changed.data.held_out, changed.data.limit) == (True, 64)
    assert changed.surge.eta == 0.5
    assert changed.name == base.name
    assert overridden(base, {}) == base


@pytest.mark.parametrize(
    ("row", "changes"), [("-dpgc", {"eta": 0.1}), ("", {"eta": 0.1, "fixed_scale": 0.02})]
)
def test_eta_has_no_place_beside_a_fixed_scale(row, changes):
    with pytest.raises(ConfigError, match="has a fixed scale, which no eta changes"):
        overridden(get_recipe(f"cifar10-resnet20-recu-surge{row}"), changes)


def test_override_of_what_a_recipe_lacks_is_an_error():
    with pytest.raises(ConfigError, match="digits-cnn-recu has no setting eta"):
        overridden(get_recipe("digits-cnn-recu"), {"eta": 0.1})


@pytest.mark.parametrize(
    "settings, words",
    [
        ({"epochs": 0}, "--epochs"),
        ({"batch": 0}, "--batch"),
        ({"accumulate": 0}, "--accumulate"),
        ({"lr": 0.0}, "lr=0.0 must be positive"),
        ({"weight_decay": -1.0}, "weight_decay=-1.0"),
        ({"warmup": -1}, "warmup=-1"),
        ({"batch": 10, "accumulate": 3}, "does not divide into accumulate=3"),
    ],
)
def test_impossible_training_is_refused(settings, words):
    with pytest.raises(ConfigError, match=words):
        TrainSpec(**settings)


def test_impossible_limit_is_refused():
    with pytest.raises(ConfigError, match="limit=0 must be at least 1"):
        DataSpec("digits", limit=0)


def test_recipe_is_frozen():
    recipe = Recipe("t", "r", ModelSpec("cnn_digits"), DataSpec("digits"), method=MethodSpec("bnn"))
    with pytest.raises(AttributeError):
        recipe.row = "other"


@pytest.mark.parametrize(
    "base", ["imagenette-onestage-reactnet", "glue-mrpc-bit", "voc-ida", "cifar10-resnet20-recu"]
)
def test_variants_keep_the_settings_of_their_table(base):
    own = get_recipe(f"{base}-surge").surge
    assert get_recipe(f"{base}-surge-noise").surge == replace(own, noise=True)
    assert get_recipe(f"{base}-surge-clipped").surge == replace(own, scope="clipped")
    assert get_recipe(f"{base}-surge-eta0.3").surge == replace(own, eta=0.3)


@pytest.mark.parametrize(
    "base, first",
    [("voc-reactnet", "voc-ida"), ("imagenet-onestage-bireal", "imagenet-onestage-reactnet")],
)
def test_variants_of_rows_without_surge_have_the_settings_of_their_table(base, first):
    own = get_recipe(f"{first}-surge").surge
    assert f"{base}-surge" not in list_recipes()
    assert get_recipe(f"{base}-surge-noise").surge == replace(own, noise=True) != PathOptions()


def test_sizes_are_for_data_that_is_cropped():
    with pytest.raises(ConfigError, match="no size to change"):
        overridden(get_recipe("digits-cnn-recu"), {"size": 8})
    assert overridden(get_recipe("imagenette-onestage-bireal"), {"size": 64}).data.size == 64


@pytest.mark.parametrize("smoothing", [-0.1, 1.0, 5.0])
def test_label_smoothing_is_a_share(smoothing):
    with pytest.raises(ConfigError, match="label_smoothing"):
        overridden(get_recipe("digits-cnn-recu"), {"label_smoothing": smoothing})


@pytest.mark.parametrize(
    "name, changes",
    [
        ("glue-rte-teacher", {"label_smoothing": 0.1}),
        ("voc-float", {"label_smoothing": 0.1}),
        ("imagenette-twostage-reactnet", {"label_smoothing": 0.1}),
        ("imagenette-twostage-reactnet", {"teacher_dropout": True}),
        ("voc-ida", {"scores": "mse"}),
        ("glue-mrpc-bit", {"scores": "mse"}),
        ("voc-float", {"sync_norm": True}),
    ],
)
def test_a_change_that_nothing_would_hear_is_refused(name, changes):
    with pytest.raises(ConfigError, match="changes nothing"):
        overridden(get_recipe(name), changes)
