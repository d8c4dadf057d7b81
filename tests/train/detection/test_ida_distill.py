"""IDa-Det's choice of proposals and its loss, patch by patch in NumPy."""

import math

import numpy as np
import pytest
import torch

from surge.train.detection.ida_distill import (
    Imitation,
    box_cells,
    discrepancy,
    entropy_loss,
    most_different,
    patch_dispersion,
    proposal_mask,
)

CANVAS = (64, 96)
SHAPE = (8, 12)


def maps(seed, channels=5, count=2):
    generator = torch.Generator().manual_seed(seed)
    return 3 * torch.randn(count, channels, *SHAPE, generator=generator)


def window(box):
    """The part of a map under a box in pixels, as slices."""
    x0, y0, x1, y1 = box
    step = CANVAS[0] / SHAPE[0]
    top, left = math.floor(y0 / step), math.floor(x0 / step)
    top, left = min(top, SHAPE[0] - 1), min(left, SHAPE[1] - 1)
    down, right = max(math.ceil(y1 / step), top + 1), max(math.ceil(x1 / step), left + 1)
    return slice(top, min(down, SHAPE[0])), slice(left, min(right, SHAPE[1]))


BOXES = torch.tensor(
    [
        [[0.0, 0.0, 20.0, 30.0], [40.0, 10.0, 90.0, 60.0], [7.9, 8.0, 16.0, 24.1]],
        [[95.0, 63.0, 96.0, 64.0], [0.0, 0.0, 96.0, 64.0], [30.0, 5.0, 50.0, 9.0]],
    ]
)


def dispersion(patch):
    flat = patch.reshape(len(patch), -1).astype(np.float64)
    powers = np.exp(flat - flat.max(axis=1, keepdims=True))
    p = powers / powers.sum(axis=1, keepdims=True)
    variance = np.maximum(p.var(axis=1), 1e-6 * p.mean(axis=1) ** 2)
    return p.mean(axis=1) ** 2 / variance


def test_dispersion_equals_numpy_on_every_patch():
    features = maps(0)
    found = patch_dispersion(features, *box_cells(BOXES, CANVAS, SHAPE))
    for image in range(2):
        for place in range(3):
            rows, columns = window(BOXES[image, place].tolist())
            expected = dispersion(features[image, :, rows, columns].numpy())
            np.testing.assert_allclose(found[image, place].numpy(), expected, rtol=1e-3)


def test_discrepancy_is_over_the_area():
    teacher, student = maps(0), maps(1)
    found = discrepancy(teacher, student, *box_cells(BOXES, CANVAS, SHAPE))
    for image in range(2):
        for place in range(3):
            rows, columns = window(BOXES[image, place].tolist())
            t, s = (m[image, :, rows, columns].numpy() for m in (teacher, student))
            apart = np.abs(dispersion(t) - dispersion(s)).sum() / t[0].size
            np.testing.assert_allclose(float(found[image, place]), apart, rtol=2e-3)


def test_dispersion_of_far_apart_values_and_of_one_place_is_finite():
    features = torch.full((1, 2, *SHAPE), -200.0)
    features[0, :, 0, 0] = 200.0
    boxes = torch.tensor([[[0.0, 0.0, 8.0, 8.0], [40.0, 16.0, 96.0, 64.0]]])
    assert patch_dispersion(features, *box_cells(boxes, CANVAS, SHAPE)).isfinite().all()


@pytest.mark.parametrize(("count", "kept"), [(0, 0), (1, 1), (3, 2), (5, 3), (10, 6)])
def test_sixty_percent_of_the_valid_proposals_are_kept(count, kept):
    scores = torch.rand(1, 12, generator=torch.Generator().manual_seed(count))
    valid = torch.zeros(1, 12, dtype=torch.bool)
    valid[0, torch.randperm(12, generator=torch.Generator().manual_seed(1))[:count]] = True
    chosen = most_different(scores, valid)
    assert int(chosen.sum()) == kept and not (chosen & ~valid).any()
    left = scores[valid & ~chosen]
    assert not len(left) or not kept or scores[chosen].min() >= left.max()


def test_proposal_mask_is_the_union_of_the_boxes_not_of_their_rows():
    teacher, student = maps(0), maps(1)
    valid = torch.tensor([[True, True, False], [True, False, True]])
    mask = proposal_mask(teacher, student, BOXES, valid, CANVAS)
    scores = discrepancy(teacher, student, *box_cells(BOXES, CANVAS, SHAPE))
    for image in range(2):
        expected = np.zeros(SHAPE)
        order = sorted(valid[image].nonzero().flatten().tolist(), key=lambda p: -scores[image, p])
        for place in order[: math.ceil(0.6 * len(order))]:
            expected[window(BOXES[image, place].tolist())] = 1
        np.testing.assert_array_equal(mask[image, 0].numpy(), expected)
        assert 0 < expected.mean() < 1 or image


def test_mask_without_proposals_is_empty():
    mask = proposal_mask(maps(0), maps(1), torch.zeros(2, 0, 4), torch.zeros(2, 0).bool(), CANVAS)
    assert mask.shape == (2, 1, *SHAPE) and not mask.any()


def test_entropy_loss_equals_numpy_with_its_gradients():
    teacher, student = maps(0).double(), maps(1).double().requires_grad_()
    sigma = torch.tensor(1.3, dtype=torch.double, requires_grad=True)
    mask = (torch.rand(2, 1, *SHAPE, generator=torch.Generator().manual_seed(0)) > 0.6).double()
    loss = entropy_loss(student, teacher, mask, sigma)
    loss.backward()
    t, s, m = teacher.numpy(), student.detach().numpy(), mask.numpy()
    squared = (((t - s) ** 2) * m).sum()
    count = m.sum() * t.shape[1]
    expected = (squared * (1 + 1.3**-2) + 1e-3 * math.log(1.3**2) * count) / count
    assert loss.item() == pytest.approx(expected, rel=1e-5)
    np.testing.assert_allclose(
        student.grad.numpy(), 2 * (s - t) * m * (1 + 1.3**-2) / count, rtol=1e-4, atol=1e-7
    )
    to_sigma = (-2 * 1.3**-3 * squared + 2e-3 / 1.3 * count) / count
    assert sigma.grad.item() == pytest.approx(to_sigma, rel=1e-5)
    none = entropy_loss(student, teacher, torch.zeros_like(mask), sigma)
    assert none.item() == 0


def test_imitation_starts_small_and_is_the_mean_of_its_levels():
    torch.manual_seed(0)
    module = Imitation(levels=2, channels=5)
    weight = module.adapters[0].weight
    assert weight.abs().max() < 2e-4 and weight.std().item() == pytest.approx(0.88e-4, rel=0.2)
    valid = torch.ones(2, 3, dtype=torch.bool)
    student, teacher = (maps(1), maps(2)), (maps(3), maps(4))
    adapted = [adapter(s) for adapter, s in zip(module.adapters, student, strict=True)]
    loss = module(adapted, teacher, BOXES, valid, CANVAS)
    parts = []
    for s, t in zip(adapted, teacher, strict=True):
        parts.append(entropy_loss(s, t, proposal_mask(t, s, BOXES, valid, CANVAS), module.sigma))
    torch.testing.assert_close(loss, (parts[0] + parts[1]) / 2)
    loss.backward()
    assert all(p.grad is not None and p.grad.any() for p in module.parameters())
