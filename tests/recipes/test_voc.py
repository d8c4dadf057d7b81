"""Rows of VOC: what the papers say, what they begin with, what they cost, the short form."""

import pytest

from surge.errors import ConfigError
from surge.recipes import get_recipe, list_recipes, serial
from surge.recipes.placing import start_of, teacher_of
from surge.recipes.recipe import TrainSpec
from surge.recipes.voc import paper_costs, shortened, with_backbone
from surge.train.detection.cost import cost_of
from surge.train.schedule import learning_rate, rate_at

ALL = [get_recipe(name) for name in list_recipes("voc")]
WHOLE = [recipe for recipe in ALL if not recipe.row.startswith("backbone-")]


def test_table_has_the_papers_rows_and_figures():
    assert {recipe.row: recipe.paper for recipe in WHOLE} == {
        "float": 78.8,
        "dorefa-w4a4": 73.3,
        "reactnet": 69.6,
        "lws": 73.2,
        "ida": 76.5,
        "ida-surge": 77.0,
    }
    assert all(recipe.metric == "map" for recipe in ALL)


@pytest.mark.parametrize("recipe", WHOLE[1:], ids=lambda recipe: recipe.row)
def test_second_stage_begins_with_the_first_and_that_with_the_float_detector(recipe):
    first = get_recipe(start_of(recipe))
    assert first.name == f"voc-backbone-{recipe.row}" and start_of(first) == "voc-float"
    assert (first.method, first.train, first.surge, first.distill) == (
        recipe.method,
        recipe.train,
        recipe.surge,
        recipe.distill,
    )
    assert recipe.distill is None or teacher_of(recipe) == "voc-float"


def test_schedule_is_that_of_the_published_code():
    train = get_recipe("voc-ida").train
    assert (train.epochs, train.batch, train.lr, train.momentum) == (12, 4, 0.004, 0.9)
    assert (train.weight_decay, train.clip, train.optimizer) == (1e-4, 35.0, "sgd")
    rates = [learning_rate(train, epoch) / train.lr for epoch in range(12)]
    assert rates == pytest.approx([1.0] * 8 + [0.1] * 3 + [0.01])  # from the 9th and the 12th on
    data = get_recipe("voc-ida").data
    assert (data.size, data.repeat) == (1000, 3) and data.sizes == pytest.approx((1.5, 1, 2 / 3))
    assert get_recipe("voc-ida-surge").surge.eta == 1e-3


@pytest.mark.parametrize("step, share", [(0, 0.001), (100, 0.5005), (200, 1.0), (201, None)])
def test_warm_up_takes_200_steps_from_a_thousandth(step, share):
    train = get_recipe("voc-ida").train
    found = rate_at(train, step, train.lr, 12_413)
    assert found == (None if share is None else pytest.approx(share * train.lr))


def test_warm_up_is_at_most_a_tenth_of_all_steps():
    spec = TrainSpec(epochs=2, schedule="detector", warmup=0, warmup_steps=200)
    assert rate_at(spec, 10, 1.0, 50) == 1.0 and rate_at(spec, 11, 1.0, 50) is None
    assert rate_at(spec, 0, 1.0, 4) is None


def test_clip_must_be_positive():
    with pytest.raises(ConfigError, match="clip=0.0 must be positive"):
        TrainSpec(clip=0.0)


@pytest.mark.parametrize("recipe", ALL, ids=lambda recipe: recipe.row)
def test_short_form_is_a_recipe_of_its_own(recipe):
    short = shortened(recipe)
    assert (short.data.size, short.data.repeat, short.train.batch) == (512, 1, 16)
    assert short.train.lr == (0.02 if recipe.method is None else 0.002)
    assert short.train.epochs == (12 if recipe.method is None else 6) and short.paper is None
    assert short.train.test_epochs == 3 and recipe.train.test_epochs == 1
    assert serial.load(serial.dump(short)) == short


def test_backbone_belongs_to_what_begins_without_a_detector():
    placed = with_backbone(get_recipe("voc-float"), "resnet18.pth")
    assert placed.model.options["backbone"].endswith("/resnet18.pth")
    with pytest.raises(ConfigError, match="voc-ida takes no --backbone"):
        with_backbone(get_recipe("voc-ida"), "resnet18.pth")


@pytest.mark.parametrize(
    "row, ops, megabytes",
    [("float", 96.26, 113.5), ("dorefa-w4a4", 38.4, 64.9), ("reactnet", 17.25, 58.9)],
)
def test_costs_beside_the_papers(torchvision, row, ops, megabytes):
    """4/4 bits by the rule of bits x bits / 64, where the paper's 27.15 takes an eighth."""
    found = cost_of(get_recipe(f"voc-{row}"))
    assert found.ops / 1e9 == pytest.approx(ops, rel=5e-3)
    assert found.bytes / 1e6 == pytest.approx(megabytes, rel=5e-3)
    if row != "dorefa-w4a4":
        assert found.ops / 1e9 == pytest.approx(paper_costs(row)[0], rel=0.07)


def test_all_binary_rows_compute_the_same(torchvision):
    rows = ("ida-surge", "lws", "reactnet")
    assert len({cost_of(get_recipe(f"voc-{row}")).ops for row in rows}) == 1
