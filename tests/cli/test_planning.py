"""What ``surge reproduce`` plans: rows and numbers, what is trained in full, what is refused."""

from pathlib import Path

import pytest

from surge.cli._planning import plans_of
from surge.cli.reproduce import ReproduceCommand
from surge.errors import ConfigError
from surge.study.queue import folder_of

PAIR = ("mrpc-bit", "mrpc-bit-surge")


def planned(table, *rows, **options):
    return plans_of(ReproduceCommand(table, rows=rows, **options))


def rows_of(plans):
    return [plan.recipe.row for plan in plans]


def on_glue(*rows, **options):
    return planned("glue", *(rows or PAIR), **{"model": "bert", **options})


# ---- numbers


def test_every_row_with_surge_gets_a_row_for_each_number():
    etas, scales = (1e-4, 0.001, 0.1, 1.0), (0.001, 0.05)
    plans = planned("cifar10", "resnet20-recu", "resnet20-recu-surge", eta=etas, fixed_scale=scales)
    base = "resnet20-recu-surge"
    numbers = ("eta0.0001", "eta0.001", "eta0.1", "eta1", "fixed0.001", "fixed0.05")
    assert rows_of(plans) == ["resnet20-recu", base, *(f"{base}-{number}" for number in numbers)]
    assert [plan.recipe.surge.eta for plan in plans[2:6]] == list(etas)
    assert [plan.recipe.surge.fixed_scale for plan in plans[6:]] == list(scales)
    assert len({folder_of(plan, 0, Path("runs")) for plan in plans}) == len(plans)
    assert all(not plan.overrides for plan in plans)


def test_number_in_a_name_and_one_that_is_asked_for_are_the_same_row():
    named = planned("digits", "cnn-recu-surge", "cnn-recu-surge-eta0.1", epochs=3)
    asked = planned("digits", "cnn-recu-surge", eta=(0.1, 0.1), epochs=3)
    assert asked == named
    both = planned("digits", "cnn-recu-surge", "cnn-recu-surge-eta0.1", eta=(0.1,), epochs=3)
    assert both == named


def test_own_eta_of_a_row_adds_none():
    assert rows_of(planned("digits", "cnn-recu-surge", eta=(0.01,))) == ["cnn-recu-surge"]
    rows = rows_of(planned("digits", "cnn-recu-surge-tied", eta=(0.01, 0.2)))
    assert rows == ["cnn-recu-surge-tied", "cnn-recu-surge-tied-eta0.01"]


def test_rows_whose_scale_is_fixed_have_no_number_added():
    rows = ("resnet20-recu-surge", "resnet20-recu-surge-dpgc")
    added = rows_of(planned("cifar10", *rows, eta=(0.1,), fixed_scale=(0.1,)))[2:]
    assert added == [f"{rows[0]}-eta0.1", f"{rows[0]}-fixed0.1"]


@pytest.mark.parametrize(
    ("rows", "options", "sentence"),
    [
        (("cnn-recu",), {"eta": (0.1,)}, "--eta is for rows with SURGE"),
        (("cnn-recu",), {"fixed_scale": (0.1,)}, "--fixed-scale is for rows with SURGE"),
        (("cnn-recu-surge-dpgc",), {"eta": (0.1,)}, "an adaptive scale"),
        (("cnn-recu-surge-eta1",), {"eta": (0.1,)}, "no number in their name"),
        (("cnn-recu-surge",), {"eta": (-0.1,)}, "eta=-0.1 must be a positive"),
        (("cnn-recu-surge-tied",), {"fixed_scale": (0.1,)}, "fixed_scale= never changes"),
    ],
)
def test_numbers_that_nothing_can_have_are_refused(rows, options, sentence):
    with pytest.raises(ConfigError, match=sentence):
        planned("digits", *rows, **options)


# ---- teachers, and what each run is given


def test_overrides_are_those_of_the_run_itself():
    teacher, *students = on_glue(epochs=2, held_out=True)
    assert teacher.recipe.row == "mrpc-teacher" and teacher.recipe.train.epochs == 6
    assert teacher.overrides == {"held_out": True}
    assert [plan.overrides for plan in students] == [{"epochs": 2, "held_out": True}] * 2


def test_each_gives_a_time_to_students_alone():
    teacher, *students = on_glue(each="15m", test_epochs=2)
    assert teacher.given is None and teacher.overrides == {"test_epochs": 2}
    assert [plan.given for plan in students] == ["900s"] * 2
    names = [folder_of(plan, 3, Path("runs")).name for plan in (teacher, *students)]
    assert names == [
        "glue-mrpc-teacher-6ep-seed3",
        "glue-mrpc-bit-900s-seed3",
        "glue-mrpc-bit-surge-900s-seed3",
    ]


def test_first_stage_is_trained_in_full_for_those_that_begin_with_it():
    plans = on_glue("mrpc-ternary", "mrpc-binarybert", each="60s")
    given = {plan.recipe.row: plan.given for plan in plans}
    assert given == {"mrpc-teacher": None, "mrpc-ternary": None, "mrpc-binarybert": "60s"}
    assert {p.recipe.row: p.given for p in on_glue("mrpc-ternary", each="60s")} == {
        "mrpc-teacher": None,
        "mrpc-ternary": "60s",
    }


def test_numbers_and_a_time_go_together():
    *_, last = on_glue(eta=(0.01,), each="60s")
    assert last.recipe.row == "mrpc-bit-surge-eta0.01" and last.given == "60s"


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"each": "soon"}, '--each "soon" is not a time like 90s'),
        ({"each": "0s"}, "--each 0s leaves no time to train"),
        ({"each": "60s", "epochs": 3}, "--each and --epochs both say how long"),
        ({"each": "60s", "jobs": 2}, "runs would share it.*leave --jobs and --together out"),
        ({"each": "60s", "together": 2}, "runs would share it"),
    ],
)
def test_time_of_each_is_refused_where_it_would_mean_nothing(options, sentence):
    with pytest.raises(ConfigError, match=sentence):
        on_glue(**options)


def test_time_of_each_needs_students_and_schedules_of_steps():
    with pytest.raises(ConfigError, match="no student among the chosen rows"):
        on_glue("mrpc-teacher", each="60s")
    with pytest.raises(ConfigError, match="digits-cnn-bnn has a schedule of epochs: --each fits"):
        planned("digits", "cnn-bnn", each="60s")
    with pytest.raises(ConfigError, match="voc-ida has a schedule of epochs"):
        planned("voc", "ida", each="60s")
