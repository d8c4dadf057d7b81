"""LWS-Det's losses in NumPy."""

import copy

import numpy as np
import pytest
import torch
from torch import nn

import surge
from surge.models.box_targets import Objects
from surge.train.detection.lws_distill import (
    LayerWatch,
    LayerWeights,
    amplitude_loss,
    angular_loss,
    imitation_loss,
    layer_loss,
    near_anchors,
    near_masks,
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


def objects_of(*images):
    targets = [
        {"boxes": torch.tensor(boxes).reshape(-1, 4), "labels": torch.ones(len(boxes)).long()}
        for boxes in images
    ]
    return Objects.of(targets)


def test_anchors_are_near_with_half_the_best_overlap():
    """Four anchors of 4 pixels side by side."""
    anchors = torch.tensor([[4.0 * i, 0.0, 4.0 * i + 4, 4.0] for i in range(4)])
    one = [[3.0, 0.0, 8.0, 4.0]]  # overlaps 1/8 with the first, 4/5 with the second
    even = [[2.0, 0.0, 6.0, 4.0]]  # both alike
    found = near_anchors(anchors, objects_of(one, even, [], one + even))
    assert found.tolist() == [
        [False, True, False, False],
        [True, True, False, False],
        [False, False, False, False],
        [True, True, False, False],
    ]


def test_masks_of_maps_have_the_places_of_their_near_anchors():
    """Maps of 1 x 2 and 1 x 1 places with two anchors each: flat and square."""
    anchors = torch.tensor(
        [[0, 0, 4, 2], [0, 0, 4, 4], [4, 0, 8, 2], [4, 0, 8, 4], [0, 0, 8, 2], [0, 0, 8, 8]]
    ).float()
    objects = objects_of([[4.0, 0.0, 8.0, 4.0]], [])
    fine, coarse = near_masks(anchors, objects, [(1, 2), (1, 1)])
    assert fine.tolist() == [[[0, 1]], [[0, 0]]] and coarse.tolist() == [[[0]], [[0]]]


def test_imitation_loss_equals_numpy():
    s, t = drawn(2, 3, 4, 4), drawn(2, 3, 4, 4, seed=1)
    mask = (drawn(2, 4, 4, seed=2) > 0).double()
    expected = ((((s - t).numpy() ** 2).sum(axis=1)) * mask.numpy()).sum() / (2 * mask.sum().item())
    assert imitation_loss(s, t, mask).item() == pytest.approx(expected, rel=1e-5)
    assert imitation_loss(s, t, torch.zeros_like(mask)).item() == 0


class Net(nn.Module):
    """A stem and one convolution whose name differs, or does not."""

    def __init__(self, name):
        super().__init__()
        self.stem = nn.Conv2d(3, 4, 7, padding=3)
        self.add_module(name, nn.Conv2d(4, 6, 3, padding=1))
        self.out = nn.Conv2d(6, 6, 3, padding=1)
        self.odd = nn.Conv2d(6, 6, 1 if name == "b" else 3, padding=0 if name == "b" else 1)
        self.last = nn.Conv2d(6, 2, 1)

    def forward(self, x):
        for layer in self.children():
            x = layer(x)
        return x


def networks():
    torch.manual_seed(0)
    student, teacher = Net("a"), Net("b")
    with no_pitfalls():
        surge.binarize_(student, "lws")
    return student, teacher


def test_layers_pair_by_name_and_else_in_order_of_their_shapes():
    student, teacher = networks()
    assert pair_layers(student, teacher) == [("a", "b"), ("out", "out")]


def test_layer_loss_is_the_weighted_sum_of_its_terms_and_reaches_weight_and_scale():
    student, teacher = networks()
    surge.on_epoch(student, 9, 10)
    watches = [
        LayerWatch([(name, net.get_submodule(name))])
        for net, name in ((student, "a"), (teacher, "b"))
    ]
    x = torch.randn(2, 3, 6, 6, generator=torch.Generator().manual_seed(1))
    student(x)
    assert watches[0].take() == {}  # not open yet
    for watch in watches:
        watch.open = True
    student(x)
    with torch.no_grad():
        teacher.eval()(x)
    ours, theirs = watches[0].take()["a"], watches[1].take()["b"]
    layer, taught = student.a, teacher.b
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


def test_layer_and_its_loss_share_one_binary_weight(monkeypatch):
    student, teacher = networks()
    surge.on_epoch(student, 0, 10)
    method, made = student.a.method, []
    expected = method.expected
    monkeypatch.setattr(method, "expected", lambda w: made.append(expected(w)) or made[-1])
    watches = [LayerWatch([("a", student.a)]), LayerWatch([("b", teacher.b)])]
    for watch in watches:
        watch.open = True
    x = torch.randn(2, 3, 6, 6)
    output = student(x)
    teacher(x)
    ours, theirs = watches[0].take()["a"], watches[1].take()["b"]
    loss = output.square().mean() + layer_loss(student.a, ours, teacher.b, theirs)
    loss.backward()
    assert len(made) == 1 and student.a.weight.grad.any()
    assert copy.deepcopy(student).a.method.used is None
