import pytest
import torch

from surge.data import epoch_plan
from surge.errors import ConfigError

PERMUTATION = [2, 6, 0, 1, 3, 7, 5, 4]
OFFSETS = [[8, 3], [1, 6], [8, 4], [0, 7], [3, 8], [4, 1], [7, 3], [5, 3]]
FLIPS = [1, 0, 0, 0, 1, 0, 0, 0]


def same(a, b):
    return (
        torch.equal(a.permutation, b.permutation)
        and torch.equal(a.offsets, b.offsets)
        and torch.equal(a.flips, b.flips)
    )


def test_epoch_plan_is_the_same_every_time_whatever_the_global_seed():
    torch.manual_seed(1)
    first = epoch_plan(1000, 3, 7)
    torch.manual_seed(2)
    assert same(first, epoch_plan(1000, 3, 7))


def test_epoch_plan_leaves_the_global_random_state_alone():
    before = torch.get_rng_state()
    epoch_plan(100, 0, 0)
    assert torch.equal(torch.get_rng_state(), before)


def test_epoch_plan_differs_between_epochs_and_seeds():
    plans = [epoch_plan(1000, epoch, seed) for epoch in range(3) for seed in range(3)]
    for field in ("permutation", "offsets", "flips"):
        different = {tuple(getattr(plan, field).flatten().tolist()) for plan in plans}
        assert len(different) == 9


def test_epoch_plan_visits_every_image_once():
    assert epoch_plan(777, 0, 0).permutation.sort().values.tolist() == list(range(777))
    assert len(epoch_plan(777, 0, 0)) == 777


def test_epoch_plan_draws_crops_and_flips_evenly():
    plan = epoch_plan(90_000, 0, 0)
    counts = torch.bincount(plan.offsets.flatten(), minlength=9)
    assert counts.shape == (9,)
    assert (counts / 20_000 - 1).abs().max() < 0.05
    assert plan.flips.float().mean().item() == pytest.approx(0.5, abs=0.01)
    rows, columns = plan.offsets.double().T
    assert torch.corrcoef(torch.stack([rows, columns]))[0, 1].abs() < 0.02


def test_epoch_plan_order_does_not_depend_on_padding_nor_crops_on_shuffling():
    plan = epoch_plan(100, 0, 0)
    narrow = epoch_plan(100, 0, 0, padding=1)
    stored = epoch_plan(100, 0, 0, shuffle=False)
    assert torch.equal(plan.permutation, narrow.permutation)
    assert torch.equal(plan.flips, narrow.flips)
    assert narrow.offsets.max() == 2
    assert stored.permutation.tolist() == list(range(100))
    assert torch.equal(plan.offsets, stored.offsets)


def test_epoch_plan_has_not_changed_since_it_was_first_published():
    # A torch release with another random stream would silently change every stored run.
    plan = epoch_plan(8, 2, 5)
    assert plan.permutation.tolist() == PERMUTATION
    assert plan.offsets.tolist() == OFFSETS
    assert plan.flips.int().tolist() == FLIPS


def test_plan_part_is_a_window():
    plan = epoch_plan(10, 0, 0)
    part = plan.part(3, 7)
    assert len(part) == 4
    assert torch.equal(part.permutation, plan.permutation[3:7])
    assert torch.equal(part.offsets, plan.offsets[3:7])
    assert torch.equal(part.flips, plan.flips[3:7])


def test_epoch_plan_refuses_nothing_and_negative_epochs():
    with pytest.raises(ConfigError, match="count=0"):
        epoch_plan(0, 0, 0)
    with pytest.raises(ConfigError, match="epoch=-1"):
        epoch_plan(1, -1, 0)
