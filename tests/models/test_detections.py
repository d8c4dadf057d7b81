"""Regions on their maps, and detections from their scores, against torchvision's functions."""

import pytest
import torch

from surge.models.boxes import clipped, decoded
from surge.models.detections import detected, map_of, pooled
from tests.models.test_boxes import drawn

STRIDES = (4, 8, 16, 32)


def maps_of(side=512):
    return [torch.randn(2, 3, side // stride, side // stride) for stride in STRIDES]


def test_regions_are_pooled_as_torchvision_pools_them(torchvision):
    maps = maps_of()
    # Sides from 1 to 500: all four maps are needed.
    corner = 100 * torch.rand(2, 40, 2)
    boxes = torch.cat([corner, corner + torch.logspace(0, 2.7, 40)[:, None]], dim=2)
    assert set(map_of(boxes, 4).flatten().tolist()) == {0, 1, 2, 3}
    found, back = pooled(maps, boxes, STRIDES, 7)
    pool = torchvision.ops.MultiScaleRoIAlign(list("0123"), 7, sampling_ratio=0)
    pool.scales = [1 / stride for stride in STRIDES]
    pool.map_levels = torchvision.ops.poolers.initLevelMapper(2, 5)
    named = {str(level): values for level, values in enumerate(maps)}
    expected = pool(named, list(boxes), [(512, 512)] * 2)
    torch.testing.assert_close(found.index_select(0, back), expected, atol=1e-4, rtol=1e-4)


def test_regions_of_one_map_and_padding_are_pooled():
    boxes = torch.zeros(2, 5, 4)
    boxes[0, 0] = torch.tensor([8.0, 8.0, 24.0, 24.0])
    found, back = pooled(maps_of(64), boxes, STRIDES, 7)
    assert found.shape == (10, 3, 7, 7) and sorted(back.tolist()) == list(range(10))


@pytest.mark.parametrize("most", [3, 100])
def test_detections_are_torchvisions(torchvision, most):
    """Two images with other sizes and other numbers of regions."""
    classes, sizes, counts = 4, [(90, 100), (70, 60)], [30, 22]
    proposals, logits = drawn(2, 30, side=60.0), 2 * torch.randn(2, 30, classes + 1)
    moves = 0.5 * torch.randn(2, 30, 4 * (classes + 1))
    heads = torchvision.models.detection.roi_heads.RoIHeads
    coder = torchvision.models.detection._utils.BoxCoder((10.0, 10.0, 5.0, 5.0))
    theirs = type("Heads", (), {})()
    theirs.box_coder, theirs.score_thresh = coder, 0.1
    theirs.nms_thresh, theirs.detections_per_img = 0.4, most
    rows = [slice(0, n) for n in counts]
    expected = heads.postprocess_detections(
        theirs,
        torch.cat([logits[i, row] for i, row in enumerate(rows)]),
        torch.cat([moves[i, row] for i, row in enumerate(rows)]),
        [proposals[i, row] for i, row in enumerate(rows)],
        sizes,
    )
    corner = torch.tensor([[[[width, height] * 2]] for height, width in sizes]).float()
    boxes = decoded(moves.view(2, 30, -1, 4)[:, :, 1:], proposals[:, :, None], (10.0, 5.0))
    valid = torch.arange(30) < torch.tensor(counts)[:, None]
    found = detected(
        logits.softmax(dim=-1)[..., 1:],
        clipped(boxes, corner),
        valid,
        least=0.1,
        overlap=0.4,
        most=most,
    )
    for image, one in enumerate(found.listed()):
        assert 0 < len(one["labels"]) <= most
        torch.testing.assert_close(one["boxes"], expected[0][image])
        torch.testing.assert_close(one["scores"], expected[1][image])
        assert torch.equal(one["labels"], expected[2][image])


def test_nothing_is_found_where_nothing_is_sure():
    found = detected(
        torch.full((2, 5, 3), 0.01),
        drawn(2, 5, 3),
        torch.ones(2, 5, dtype=torch.bool),
        least=0.05,
        overlap=0.5,
        most=10,
    )
    assert [len(one["boxes"]) for one in found.listed()] == [0, 0]
