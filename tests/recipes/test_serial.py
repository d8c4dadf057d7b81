"""Recipes as YAML: nothing is lost, and nothing unknown gets in."""

from dataclasses import replace

import pytest

from surge.errors import ConfigError
from surge.recipes import MethodSpec, get_recipe, list_recipes
from surge.recipes.serial import dump, load
from surge.recipes.variants import VARIANTS

RECIPE = get_recipe("digits-cnn-recu-surge")
TEXT = dump(RECIPE)


@pytest.mark.parametrize("name", list_recipes())
def test_every_recipe_survives_yaml(name):
    recipe = get_recipe(name)
    assert load(dump(recipe)) == recipe
    assert dump(load(dump(recipe))) == dump(recipe)


@pytest.mark.parametrize("variant", list(VARIANTS))
def test_every_variant_survives_yaml(variant):
    recipe = get_recipe("digits-cnn-recu-surge" + (f"-{variant}" if variant else ""))
    assert load(dump(recipe)) == recipe


def test_options_and_patterns_survive_yaml():
    method = MethodSpec("irnet", {"t_min": 1e-5}, skip=("*downsample*", "fc"))
    recipe = replace(RECIPE, method=method)
    assert load(dump(recipe)) == recipe


def changed(old, new):
    assert old in TEXT
    return TEXT.replace(old, new)


@pytest.mark.parametrize(
    "old, new, words",
    [
        ("row:", "rwo:", 'recipe has no field "rwo". Did you mean "row"?'),
        ("  epochs:", "  epoch:", 'recipe.train has no field "epoch". Did you mean "epochs"?'),
        ("  eta:", "  etha:", 'recipe.surge has no field "etha". Did you mean "eta"?'),
        ("  epochs: 20", "  epochs: many", "recipe.train.epochs='many' must be int"),
        ("  epochs: 20", "  epochs: true", "recipe.train.epochs=True must be int"),
        ("  epochs: 20", "  epochs: 2.5", "recipe.train.epochs=2.5 must be int"),
        ("  lr: 0.05", "  lr: fast", "recipe.train.lr='fast' must be a number"),
        ("  held_out: false", "  held_out: 0", "recipe.data.held_out=0 must be bool"),
        ("  limit: null", "  limit: few", "recipe.data.limit='few' must be int"),
        ("  name: digits", "  name: digit", 'is not known. Did you mean "digits"?'),
        ("  optimizer: sgd", "  optimizer: sdg", 'Did you mean "sgd"? Accepted: sgd, adam'),
        ("  skip: []", "  skip: fc", "recipe.method.skip='fc' must be a list"),
        ("  scope: all", "  scope: al", 'Did you mean "all"?'),
        ("  fixed_scale: null", "  fixed_scale: first", "recipe.surge.fixed_scale='first'"),
        ("  epochs: 20", "  epochs: 0", "epochs=0 must be at least 1"),
        ("table: digits\n", "", "missing 1 required positional argument: 'table'"),
    ],
)
def test_mistakes_are_named(old, new, words):
    with pytest.raises(ConfigError) as caught:
        load(changed(old, new))
    assert words in str(caught.value)


@pytest.mark.parametrize("text", ["[1, 2]", "text", "", "a: [", "\tx"])
def test_what_is_no_mapping_is_an_error(text):
    with pytest.raises(ConfigError):
        load(text)


def test_missing_section_is_an_error_that_says_where():
    with pytest.raises(ConfigError, match="recipe.model must be a mapping, not NoneType"):
        load("table: t\nrow: r\nmodel: null\ndata: {name: digits}\n")


@pytest.mark.parametrize("text, value", [("1e-4", 1e-4), ("1", 1.0), (".5", 0.5)])
def test_numbers_may_be_written_as_people_do(text, value):
    recipe = load(changed("  lr: 0.05", f"  lr: {text}"))
    assert recipe.train.lr == value
    assert isinstance(recipe.train.lr, float)


def test_fixed_scale_takes_a_number_or_a_word():
    for text, value in (("initial", "initial"), ("0.5", 0.5)):
        recipe = load(changed("  fixed_scale: null", f"  fixed_scale: {text}"))
        assert recipe.surge.fixed_scale == value


def test_no_python_object_is_built():
    with pytest.raises(ConfigError, match="not valid YAML"):
        load("table: !!python/object/apply:os.getcwd []\n")
