"""BertAdam against its formulas in NumPy."""

import copy

import numpy as np
import pytest
import torch
from torch import nn

from surge.train.text.bertadam import BertAdam, clip_


def by_hand(w, gradients, *, lr, decay, eps=1e-6, betas=(0.9, 0.999), largest=1.0):
    m, v = np.zeros_like(w), np.zeros_like(w)
    for g in gradients:
        norm = np.sqrt((g**2).sum())
        g = g * min(1.0, largest / (norm + 1e-6))
        m = betas[0] * m + (1 - betas[0]) * g
        v = betas[1] * v + (1 - betas[1]) * g**2
        w = w - lr * (m / (np.sqrt(v) + eps) + decay * w)
    return w


@pytest.mark.parametrize("fused", [False, True])
@pytest.mark.parametrize("tensor_lr", [False, True])
def test_steps_equal_numpy(tensor_lr, fused):
    torch.manual_seed(0)
    shapes, lr = ((5, 3), (4,), ()), 0.05
    weights = [nn.Parameter(torch.randn(s, dtype=torch.double)) for s in shapes]
    start = [w.detach().clone().numpy() for w in weights]
    # One gradient is far above the norm at which it is clipped, one far below.
    gradients = [[torch.randn(s).double() * size for s in shapes] for size in (9.0, 0.01, 1.0)]
    groups = [
        {"params": weights[:2], "weight_decay": 0.1},
        {"params": weights[2:], "weight_decay": 0.0},
    ]
    optimizer = BertAdam(groups, lr=torch.tensor(lr) if tensor_lr else lr, fused=fused)
    for step in gradients:
        for weight, gradient in zip(weights, step, strict=True):
            weight.grad = gradient.clone()
        optimizer.step()
    for index, weight in enumerate(weights):
        seen = [step[index].numpy() for step in gradients]
        expected = by_hand(start[index], seen, lr=lr, decay=0.1 if index < 2 else 0.0)
        np.testing.assert_allclose(weight.detach().numpy(), expected, rtol=1e-7)


def test_first_step_has_no_bias_correction():
    weight = nn.Parameter(torch.zeros(1))
    weight.grad = torch.full((1,), 0.5)
    BertAdam([weight], lr=1.0, weight_decay=0.0).step()
    # 0.1 g / sqrt(0.001 g^2): Adam proper would give 1.
    assert weight.item() == pytest.approx(-0.1 / np.sqrt(0.001), rel=1e-4)


def test_each_gradient_is_clipped_by_itself():
    long, short = torch.full((4,), 3.0), torch.full((4,), 0.1)
    clip_([long, short], 1.0)
    assert long.norm().item() == pytest.approx(1.0, rel=1e-5)
    assert short.eq(0.1).all()


def test_parameters_without_gradient_stay():
    weight = nn.Parameter(torch.ones(3))
    BertAdam([weight], lr=1.0).step()
    assert weight.eq(1).all()


def test_closure_and_state_survive_a_round_trip():
    def build():
        torch.manual_seed(0)
        weight = nn.Parameter(torch.randn(4))
        return weight, BertAdam([weight], lr=0.1)

    def go(weight, optimizer):
        def closure():
            optimizer.zero_grad()
            loss = weight.square().sum()
            loss.backward()
            return loss

        return optimizer.step(closure)

    weight, optimizer = build()
    assert go(weight, optimizer).item() > 0
    other, resumed = build()
    with torch.no_grad():
        other.copy_(weight)
    resumed.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    go(weight, optimizer)
    go(other, resumed)
    assert torch.equal(weight, other)
