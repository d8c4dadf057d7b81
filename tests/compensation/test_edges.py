"""Edges of compensation that would otherwise go wrong without a word."""

import pytest
import torch
from torch import nn

import surge
from surge.errors import ConfigError


class Shared(nn.Module):
    """One clamp that feeds two layers, with different inputs."""

    def __init__(self):
        super().__init__()
        self.stem, self.act = nn.Linear(6, 8), nn.Hardtanh()
        self.a, self.b = (surge.BinaryLinear(8, 4, method="recu") for _ in range(2))

    def forward(self, x):
        h = self.stem(x)
        p, q = self.act(h), self.act(-3 * h)
        return self.a(p) + self.b(q)


def test_a_clamp_that_serves_twice_cannot_be_injected_above():
    model = Shared()
    with pytest.raises(ConfigError, match="nor used again before"):
        surge.compensate_(model, aux_input="above_clamp", example_input=torch.randn(2, 6))


def compensated(method="recu", **options):
    binary = surge.BinaryLinear(8, 3, method=method)
    model = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Hardtanh(), binary)
    return model, surge.compensate_(model, **options)


def test_following_twice_counts_a_step_once():
    model, compensation = compensated(every=2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    assert compensation.follow(optimizer).follow(optimizer) is compensation
    for _ in range(3):
        optimizer.zero_grad()
        model(torch.randn(4, 6)).square().mean().backward()
        optimizer.step()
    assert compensation.steps == 3
    with pytest.raises(ConfigError, match="follows another optimizer"):
        compensation.follow(torch.optim.SGD(model.parameters(), lr=0.1))


def test_a_plain_model_refuses_what_it_cannot_hold():
    model, _ = compensated()
    plain, _ = compensated()
    surge.strip_(plain)
    with pytest.raises(RuntimeError, match=r"Unexpected key.*3\.auxiliary"):
        plain.load_state_dict(model.state_dict())
    found = plain.load_state_dict(model.state_dict(), strict=False)
    assert found.unexpected_keys and all("auxiliary" in key for key in found.unexpected_keys)


def test_alignment_is_no_loss_outside_of_training():
    model, _ = compensated(align=0.5)
    model(torch.randn(4, 6))
    assert surge.extra_loss(model) is not None
    model.eval()(torch.randn(4, 6))
    assert surge.extra_loss(model) is None


def test_leaky_tail_refuses_a_double_backward():
    model, _ = compensated(auxiliary="leaky_tail")
    x = torch.randn(4, 6, requires_grad=True)
    with pytest.raises(RuntimeError):
        (grad,) = torch.autograd.grad(model(x).square().sum(), x, create_graph=True)
        grad.square().sum().backward()
