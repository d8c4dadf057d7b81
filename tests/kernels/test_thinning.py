"""NMS in one kernel against the plain form: on a GPU, else in Triton's interpreter."""

from contextlib import contextmanager

import pytest
import torch

from surge.kernels.thinning import thin
from surge.models.boxes import thinned
from tests.kernels.test_narrow_conv import (
    DEVICE,
    assert_same_on_another_stream,
    on_this_machine,
)
from tests.models.test_boxes import drawn


@on_this_machine
@pytest.mark.parametrize("count", [1, 63, 64, 65, 200])
@pytest.mark.parametrize("threshold", [0.1, 0.5, 0.7])
def test_kernel_keeps_what_the_plain_form_keeps(_, count, threshold):
    boxes, alive = drawn(4, count), torch.rand(4, count) > 0.2
    alive[1] = False
    found = thin(boxes.to(DEVICE), alive.to(DEVICE), threshold).cpu()
    assert torch.equal(found, thinned(boxes, alive, threshold))
    assert not found[1].any() and found[0].any() == alive[0].any()


@on_this_machine
def test_kernel_follows_a_chain_over_several_blocks(_):
    """Each box beats the next: every second one stays."""
    start = 3.0 * torch.arange(150)
    boxes = torch.stack([start, torch.zeros(150), start + 9, torch.ones(150)], dim=1)
    alive = torch.ones(1, 150, dtype=torch.bool)
    found = thin(boxes[None].to(DEVICE), alive.to(DEVICE), 0.45).cpu()
    assert found[0].nonzero().flatten().tolist() == list(range(0, 150, 2))


@on_this_machine
def test_empty_boxes_beat_nobody(_):
    boxes = torch.zeros(1, 3, 4, device=DEVICE)
    assert thin(boxes, torch.ones(1, 3, dtype=torch.bool, device=DEVICE), 0.5).all()


@on_this_machine
def test_kernel_starts_on_the_device_of_its_boxes(_, monkeypatch):
    entered = []

    @contextmanager
    def device_of(tensor):
        entered.append(tensor.device)
        yield

    monkeypatch.setattr(torch.cuda, "device_of", device_of)
    boxes = drawn(1, 5).to(DEVICE)
    thin(boxes, torch.ones(1, 5, dtype=torch.bool, device=DEVICE), 0.5)
    assert entered == [boxes.device]


@pytest.mark.gpu
def test_kernel_repeats_on_another_stream():
    boxes, alive = drawn(80, 500, side=500.0).cuda(), (torch.rand(80, 500) > 0.1).cuda()
    assert_same_on_another_stream(lambda: (thin(boxes, alive, 0.7),))


@pytest.mark.gpu
def test_thousands_of_boxes_on_a_gpu_are_those_of_the_cpu():
    boxes = drawn(80, 2000, side=500.0)
    alive = torch.rand(80, 2000) > 0.1
    found = thinned(boxes.cuda(), alive.cuda(), 0.7).cpu()
    assert torch.equal(found, thinned(boxes, alive, 0.7))
