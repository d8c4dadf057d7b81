"""LWS-Det's losses in NumPy."""

import numpy as np
import pytest
import torch
from torch import nn

import surge
from surge.train.layer_distill import (
    LayerWatch,
    LayerWeights,
    amplitude_loss,
    angular_loss,
    imitation_loss,
    layer_loss,
    near_mask,
    overlaps,
    pair_layers,
    weight_loss,
)
from tests.methods.reference import sign
from tests.nets import no_pitfalls


def drawn(*shape, seed=0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.double)


def length(x):
    return np.sqrt((x.numpy() ** 2).sum())


def test_angular_loss_equals_numpy_filter_by_filter():
    y, a, w = drawn(2, 3, 4, 4), drawn(2, 5, 4, 4, seed=1), drawn(3, 5, 3, 3, seed=2)
    other, b, v = drawn(2, 3, 4, 4, seed=3), drawn(2, 5, 4, 4, seed=4), drawn(3, 5, 3, 3, seed=5)
    expected = 0.0
    for image in range(2):
        for unit in range(3):
            ours = y[image, unit].numpy() / (length(a[image]) * length(w[unit]))
            theirs = other[image, unit].numpy() / (length(b[image]) * length(v[unit]))
            expected += ((ours - theirs) ** 2).sum() / 2
    assert angular_loss(y, a, w, other, b, v).item() == pytest.approx(expected, rel=1e-5)


def test_amplitude_and_weight_loss_equal_numpy():
    y, other = drawn(2, 3, 4, 4), drawn(2, 3, 4, 4, seed=1)
    expected = ((y - other).numpy() ** 2).mean()
    assert amplitude_loss(y, other).item() == pytest.approx(expected, rel=1e-5)
    w, alpha = drawn(3, 5, 3, 3), drawn(3, seed=1)
    bits = sign(drawn(3, 5, 3, 3, seed=2).numpy())
    expected = ((w.numpy() - alpha.numpy()[:, None, None, None] * bits) ** 2).mean()
    found = weight_loss(w, torch.from_numpy(bits), alpha).item()
    assert found == pytest.approx(expected, rel=1e-6)


def test_overlaps_of_known_boxes():
    boxes = torch.tensor([[0.0, 0.0, 2.0, 2.0], [4.0, 4.0, 6.0, 6.0]])
    others = torch.tensor([[0.0, 0.0, 2.0, 2.0], [1.0, 0.0, 3.0, 2.0], [9.0, 9.0, 9.0, 9.0]])
    expected = [[1.0, 2 / 6, 0.0], [0.0, 0.0, 0.0]]
    np.testing.assert_allclose(overlaps(boxes, others).numpy(), expected, rtol=1e-6)


def test_near_mask_keeps_places_with_half_the_best_overlap():
    """A map of 1 x 4 places, one anchor each, of 4 pixels side by side."""
    anchors = torch.tensor([[4.0 * i, 0.0, 4.0 * i + 4, 4.0] for i in range(4)])
    objects = torch.tensor([[3.0, 0.0, 8.0, 4.0]])  # overlaps 1/8 with the first, 4/5 the second
    assert near_mask(anchors, objects, (1, 4)).tolist() == [[0, 1, 0, 0]]
    even = torch.tensor([[2.0, 0.0, 6.0, 4.0]])  # both alike
    assert near_mask(anchors, even, (1, 4)).tolist() == [[1, 1, 0, 0]]
    assert not near_mask(anchors, torch.zeros(0, 4), (1, 4)).any()


def test_imitation_loss_equals_numpy():
    s, t = drawn(2, 3, 4, 4), drawn(2, 3, 4, 4, seed=1)
    mask = (drawn(2, 4, 4, seed=2) > 0).double()
    expected = ((((s - t).numpy() ** 2).sum(axis=1)) * mask.numpy()).sum() / (2 * mask.sum().item())
    assert imitation_loss(s, t, mask).item() == pytest.approx(expected, rel=1e-5)
    assert imitation_loss(s, t, torch.zeros_like(mask)).item() == 0


def networks():
    torch.manual_seed(0)
    teacher = nn.Sequential(
        nn.Conv2d(3, 4, 7, padding=3), nn.ReLU(), nn.Conv2d(4, 4, 1), nn.Conv2d(4, 6, 3, padding=1)
    )
    student = nn.Sequential(nn.Conv2d(3, 4, 7, padding=3), nn.Conv2d(4, 6, 3, padding=1))
    with no_pitfalls():
        surge.binarize_(student, "lws", keep_last=False)
    return student, teacher


def test_layers_pair_by_shape_in_order():
    student, teacher = networks()
    assert pair_layers(student, teacher) == [("1", "3")]


def test_layer_loss_is_the_weighted_sum_of_its_terms_and_reaches_weight_and_scale():
    student, teacher = networks()
    surge.on_epoch(student, 9, 10)
    watches = [
        LayerWatch([(name, net.get_submodule(name))])
        for net, name in ((student, "1"), (teacher, "3"))
    ]
    x = torch.randn(2, 3, 6, 6, generator=torch.Generator().manual_seed(1))
    student(x)
    with torch.no_grad():
        teacher.eval()(x)
    ours, theirs = watches[0].take()["1"], watches[1].take()["3"]
    layer, taught = student[1], teacher[3]
    found = layer_loss(layer, ours, taught, theirs)
    alpha = layer.method.alpha.detach()
    bits = torch.from_numpy(sign(layer.weight.detach().numpy())).float()
    y = (ours.output - layer.bias.view(-1, 1, 1)).detach()
    t = (theirs.output - taught.bias.view(-1, 1, 1)).detach()
    signs = torch.from_numpy(sign(ours.inputs.detach().numpy())).float()
    weights = LayerWeights()
    expected = (
        weights.angular
        * angular_loss(t, theirs.inputs, taught.weight, y / alpha.view(-1, 1, 1), signs, bits)
        + weights.amplitude * amplitude_loss(t, y)
        + weights.weight * weight_loss(taught.weight, bits, alpha)
    )
    torch.testing.assert_close(found, expected)
    found.backward()
    assert layer.weight.grad.any() and layer.method.alpha.grad.any()
    assert watches[0].take() == {}
