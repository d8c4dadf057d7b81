"""Which boxes are on objects, and which are drawn: the rules of torchvision, image by image."""

import pytest
import torch

from surge.models.box_targets import Objects, drawn, matched
from tests.models.test_boxes import drawn as boxes_of


def targets_of(counts):
    return [{"boxes": boxes_of(n, seed=n), "labels": 1 + torch.arange(n) % 4} for n in counts]


def test_objects_are_padded_and_images_may_have_none():
    targets = targets_of((2, 0, 5))
    found = Objects.of(targets)
    assert found.boxes.shape == (3, 5, 4) and found.present.sum(dim=1).tolist() == [2, 0, 5]
    for image, target in enumerate(targets):
        there = found.present[image]
        assert torch.equal(found.boxes[image][there], target["boxes"])
        assert torch.equal(found.labels[image][there], target["labels"])
    assert Objects.of(targets_of((0, 0))).boxes.shape == (2, 1, 4)


@pytest.mark.parametrize(("high", "low", "rescue"), [(0.7, 0.3, True), (0.5, 0.5, False)])
def test_matching_is_torchvisions(torchvision, high, low, rescue):
    targets, boxes = targets_of((3, 0, 1, 6)), boxes_of(4, 200, seed=9)
    best, kind = matched(boxes, Objects.of(targets), high=high, low=low, rescue=rescue)
    matcher = torchvision.models.detection._utils.Matcher(
        high, low, allow_low_quality_matches=rescue
    )
    kinds = set()
    for image, target in enumerate(targets):
        if len(target["boxes"]) == 0:
            assert not kind[image].any()
            continue
        expected = matcher(torchvision.ops.box_iou(target["boxes"], boxes[image]))
        on = expected >= 0
        assert torch.equal(kind[image] == 1, on)
        assert torch.equal(kind[image] == -1, expected == -2)
        assert torch.equal(best[image][on], expected[on])
        kinds |= set(kind[image].tolist())
    assert kinds == ({0, 1, -1} if low < high else {0, 1})


@pytest.mark.parametrize(
    ("ones", "zeros", "expected"),
    [(50, 500, (16, 48)), (3, 500, (3, 61)), (50, 10, (16, 10)), (0, 5, (0, 5)), (0, 0, (0, 0))],
)
def test_as_many_are_drawn_as_torchvision_draws(torchvision, ones, zeros, expected):
    row = torch.cat([torch.ones(ones), torch.zeros(zeros), -torch.ones(600 - ones - zeros)]).long()
    kind = torch.stack([row[torch.randperm(600)] for _ in range(3)])
    places, counted = drawn(kind, 64, 0.25)
    sampler = torchvision.models.detection._utils.BalancedPositiveNegativeSampler(64, 0.25)
    theirs = sampler([r.float() for r in kind])
    for image in range(3):
        mine = places[image][counted[image]]
        assert len(set(mine.tolist())) == len(mine)
        kinds = kind[image][mine]
        assert ((kinds == 1).sum().item(), (kinds == 0).sum().item()) == expected
        assert (theirs[0][image].sum().item(), theirs[1][image].sum().item()) == expected


def test_every_place_is_as_likely_as_the_others():
    """2000 rows with 8 ones and 24 zeros, of which 4 and 12 are drawn."""
    kind = torch.cat([torch.ones(8), torch.zeros(24), -torch.ones(3)]).long().expand(2000, -1)
    places, counted = drawn(kind, 16, 0.25)
    assert counted.all()
    often = torch.bincount(places.flatten(), minlength=35).double() / 2000
    assert not often[32:].any()
    # Five standard deviations of a share of one half.
    assert (often[:32] - 0.5).abs().max() < 5 * 0.5 / 2000**0.5


def test_what_is_drawn_depends_on_the_seed_alone():
    kind = torch.randint(-1, 2, (2, 100))
    found = []
    for seed in (3, 3, 4):
        torch.manual_seed(seed)
        found.append(drawn(kind, 10, 0.5)[0])
    assert torch.equal(found[0], found[1]) and not torch.equal(found[0], found[2])


def test_few_boxes_are_all_drawn():
    places, counted = drawn(torch.tensor([[1, 0, -1]]), 256, 0.5)
    assert places.shape == (1, 3) and set(places[counted].tolist()) == {0, 1}
