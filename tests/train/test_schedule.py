"""The learning rate at the epochs where it can be checked by hand."""

import math

import pytest
import torch

from surge.recipes import TrainSpec, get_recipe
from surge.train.build import make_optimizer, set_learning_rate
from surge.train.schedule import learning_rate, rate_at, step_seed
from tests.train.small import CPU, make_trainer, small_recipe

RECU = get_recipe("cifar10-resnet20-recu").train


@pytest.mark.parametrize("epoch, rate", list(enumerate([0.02, 0.04, 0.06, 0.08, 0.1])))
def test_learning_rate_warms_up_over_five_epochs(epoch, rate):
    assert learning_rate(RECU, epoch) == pytest.approx(rate)


@pytest.mark.parametrize(
    "epoch, rate",
    [
        (4, 0.1),
        (5, 0.05 * (1 + math.cos(math.pi / 596))),
        (153, 0.05 * (1 + math.cos(math.pi / 4))),
        (302, 0.05),
        (599, 0.05 * (1 + math.cos(math.pi * 595 / 596))),
    ],
)
def test_learning_rate_follows_the_cosine_of_596_epochs(epoch, rate):
    assert learning_rate(RECU, epoch) == pytest.approx(rate, rel=1e-9)


def test_learning_rate_is_above_zero_in_the_last_epoch():
    assert 0 < learning_rate(RECU, 599) < 1e-6


def test_learning_rate_without_warmup_starts_full_and_has_its_whole_period():
    spec = get_recipe("cifar10-resnet20-irnet").train
    assert spec.warmup == 0
    assert learning_rate(spec, 0) == spec.lr
    assert learning_rate(spec, spec.epochs // 2) == pytest.approx(spec.lr / 2)


def test_learning_rate_linear_and_constant():
    linear = TrainSpec(epochs=10, lr=1.0, warmup=0, schedule="linear")
    assert [learning_rate(linear, e) for e in (0, 5, 9)] == pytest.approx([1.0, 0.5, 0.1])
    constant = TrainSpec(epochs=10, lr=1.0, warmup=2, schedule="constant")
    assert [learning_rate(constant, e) for e in (0, 1, 5, 9)] == [0.5, 1.0, 1.0, 1.0]


@pytest.mark.parametrize(
    "schedule, epochs, drops", [("drops", 10, [3, 6, 9]), ("detector", 12, [8, 11])]
)
def test_learning_rate_falls_to_a_tenth_where_the_schedule_drops(schedule, epochs, drops):
    spec = TrainSpec(epochs=epochs, lr=1.0, warmup=0, schedule=schedule)
    expected = [0.1 ** sum(e >= drop for drop in drops) for e in range(epochs)]
    assert [learning_rate(spec, e) for e in range(epochs)] == pytest.approx(expected)


def test_rate_of_a_schedule_by_steps_is_not_its_epochs():
    spec = TrainSpec(epochs=2, lr=1.0, schedule="steps")
    rates = [rate_at(spec, step, 9.0, 10) for step in (0, 1, 2, 11, 19)]
    assert rates == pytest.approx([0.0, 0.5, 1.0, 0.5, 1 / 18])


def test_rate_is_set_in_place_where_it_is_a_tensor():
    weight = torch.nn.Parameter(torch.ones(1))
    rate = torch.tensor(0.1)
    optimizer = torch.optim.SGD([weight], lr=rate)
    set_learning_rate(optimizer, 0.025)
    assert optimizer.param_groups[0]["lr"] is rate
    assert rate == 0.025


def test_optimizers_are_what_the_recipe_says():
    model = torch.nn.Linear(2, 2)
    sgd = make_optimizer(model, RECU, CPU)
    assert isinstance(sgd, torch.optim.SGD)
    (group,) = sgd.param_groups  # weight decay on everything, in one group
    assert (group["lr"], group["momentum"], group["weight_decay"]) == (0.1, 0.9, 5e-4)
    assert not group["nesterov"]
    adam = make_optimizer(model, TrainSpec(optimizer="adam", lr=1e-3), CPU)
    assert isinstance(adam, torch.optim.Adam)


def test_rows_report_the_rate_of_their_epoch(tmp_path):
    recipe = small_recipe("cnn-bnn", epochs=4, warmup=2, lr=0.05)
    rows = []
    make_trainer(tmp_path, recipe).run(rows.append)
    assert [row["lr"] for row in rows] == [learning_rate(recipe.train, e) for e in range(4)]
    assert [row["lr"] for row in rows[:2]] == pytest.approx([0.025, 0.05])


def test_step_seed_differs_by_seed_epoch_and_rank():
    seeds = {step_seed(*key) for key in ((0, 0, 0), (1, 0, 0), (0, 1, 0), (0, 0, 1), (1, 1, 0))}
    assert len(seeds) == 5
    assert step_seed(3, 4, 5) == step_seed(3, 4, 5)
