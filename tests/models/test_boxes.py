"""Boxes of whole batches, against torchvision's functions for one image."""

import pytest
import torch

from surge.models import boxes as own
from surge.models.boxes import clipped, decoded, encoded, large, overlaps, thinned, thinned_levels
from tests.models.boxes_reference import slow_nms


def drawn(*shape, side=100.0, seed=0):
    generator = torch.Generator().manual_seed(seed)
    corner = side * torch.rand(*shape, 2, generator=generator)
    extent = 1 + side / 2 * torch.rand(*shape, 2, generator=generator)
    return torch.cat([corner, corner + extent], dim=-1)


def test_overlaps_of_a_batch_are_those_of_its_images(torchvision):
    ours, others = drawn(3, 7), drawn(1, 5, seed=1)
    found = overlaps(ours, others)
    for image in range(3):
        torch.testing.assert_close(found[image], torchvision.ops.box_iou(ours[image], others[0]))


@pytest.mark.parametrize("weights", [(1.0, 1.0), (10.0, 5.0)])
def test_coding_is_torchvisions(torchvision, weights):
    coder = torchvision.models.detection._utils.BoxCoder(
        (weights[0], weights[0], weights[1], weights[1])
    )
    boxes, anchors = drawn(2, 6), drawn(2, 6, seed=1)
    moves = encoded(boxes, anchors, weights)
    expected = coder.encode(list(boxes), list(anchors))
    torch.testing.assert_close(moves, torch.stack(expected))
    torch.testing.assert_close(decoded(moves, anchors, weights), boxes)
    wild = 40 * torch.randn(12, 4)
    expected = coder.decode(wild, [anchors.view(-1, 4)])
    torch.testing.assert_close(
        decoded(wild, anchors.view(-1, 4), weights), expected.view(-1, 4), rtol=1e-5, atol=1e-3
    )


def test_boxes_are_cut_at_the_border_of_their_own_image():
    corner = torch.tensor([[[50.0, 40, 50, 40]], [[90.0, 80, 90, 80]]])
    found = clipped(torch.tensor([-5.0, 10, 70, 95]).expand(2, 1, 4), corner)
    assert found.tolist() == [[[0, 10, 50, 40]], [[0, 10, 70, 80]]]
    assert large(torch.tensor([[0.0, 0, 2, 1], [0, 0, 2, 0.5]]), 1.0).tolist() == [True, False]


@pytest.mark.parametrize("pairs", [1, 1 << 22])
@pytest.mark.parametrize("threshold", [0.1, 0.5, 0.7])
def test_thinning_is_the_one_by_one_rule_in_every_group(monkeypatch, threshold, pairs):
    monkeypatch.setitem(own.PAIRS, "cpu", pairs)
    boxes = drawn(5, 120)
    alive = torch.rand(5, 120) > 0.2
    found = thinned(boxes, alive, threshold)
    for group in range(5):
        living = alive[group].nonzero().flatten()
        ranks = (-torch.arange(len(living))).tolist()
        kept = slow_nms(boxes[group][living].tolist(), ranks, threshold)
        assert found[group].nonzero().flatten().tolist() == living[kept].tolist()


def test_thinning_follows_a_chain_longer_than_one_look():
    """Each box beats the next: every second one stays."""
    start = 3.0 * torch.arange(50)
    boxes = torch.stack([start, torch.zeros(50), start + 9, torch.ones(50)], dim=1)
    found = thinned(boxes[None], torch.ones(1, 50, dtype=torch.bool), 0.45)
    assert found[0].nonzero().flatten().tolist() == list(range(0, 50, 2))


def test_thinning_nothing_leaves_nothing():
    assert thinned(torch.zeros(2, 0, 4), torch.zeros(2, 0, dtype=torch.bool), 0.5).shape == (2, 0)


@pytest.mark.parametrize("counts", [(40, 30, 12, 4, 1), (10, 10, 10), (30,)])
def test_levels_are_thinned_out_by_themselves(counts):
    boxes, alive = drawn(3, sum(counts)), torch.rand(3, sum(counts)) > 0.2
    found = thinned_levels(boxes, alive, counts, 0.3)
    first = 0
    for count in counts:
        part = slice(first, first + count)
        assert torch.equal(found[:, part], thinned(boxes[:, part], alive[:, part], 0.3))
        first += count
    assert found.sum() < alive.sum()
