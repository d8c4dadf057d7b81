"""Edges of compensation that would otherwise go wrong without a word."""

import copy
import io
from contextlib import nullcontext

import pytest
import torch
from torch import nn
from torch.nn.utils import prune
from torch.overrides import TorchFunctionMode
from torch.utils.checkpoint import checkpoint

import surge
from surge.compensation.path import Watch
from surge.errors import ConfigError, NoLayersMatchedError, SurgeWarning, UnsupportedLayerError
from tests.nets import assert_same_tensors, cnn


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
    assert surge.extra_loss(model) == 0


def test_leaky_tail_refuses_a_double_backward():
    model, _ = compensated(auxiliary="leaky_tail")
    x = torch.randn(4, 6, requires_grad=True)
    with pytest.raises(RuntimeError):
        (grad,) = torch.autograd.grad(model(x).square().sum(), x, create_graph=True)
        grad.square().sum().backward()


def test_a_loaded_state_brings_its_scale_and_not_its_settings():
    other, _ = compensated(eta=0.01)
    other[3].auxiliary.scale.fill_(0.7)
    model, compensation = compensated(eta=0.001)
    model.load_state_dict(other.state_dict())
    assert compensation.scales() == {"3": pytest.approx(0.7)}
    assert model[3].auxiliary.eta == pytest.approx(0.001)
    fixed, compensation = compensated(fixed_scale=0.05)
    fixed.load_state_dict(other.state_dict())
    assert compensation.scales() == {"3": pytest.approx(0.05)}
    leaky, _ = compensated(auxiliary="leaky_tail", eta=0.2)
    model, compensation = compensated(auxiliary="leaky_tail", eta=0.05)
    model.load_state_dict(leaky.state_dict())
    assert compensation.scales() == {"3": pytest.approx(0.05)}


def test_a_dose_that_decays_continues_where_it_was():
    other, _ = compensated(decay="cosine")
    surge.on_epoch(other, 5, 10)
    model, _ = compensated(decay="cosine")
    model.load_state_dict(other.state_dict())
    assert model[3].auxiliary.eta == other[3].auxiliary.eta < 0.01


@pytest.mark.parametrize("named", [True, False])
def test_gradients_asked_for_by_name_leave_the_scale_without_norms(named):
    model, compensation = compensated()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    compensation.follow(optimizer)
    model(torch.randn(4, 6)).square().mean().backward(
        inputs=list(model.parameters()) if named else None
    )
    optimizer.step()
    assert model[3].auxiliary.watch.settled is not named


class Siamese(nn.Module):
    """A layer that is called twice, the second time without gradients or behind another clamp."""

    def __init__(self, *, clamps=1):
        super().__init__()
        self.stem, self.layer = nn.Linear(8, 8), surge.BinaryLinear(8, 8)
        self.clamps = nn.ModuleList(nn.Hardtanh() for _ in range(clamps))

    def forward(self, x):
        if len(self.clamps) == 2:
            return self.layer(self.clamps[1](self.layer(self.clamps[0](self.stem(x)))))
        y = self.layer(self.stem(x))
        with torch.no_grad():
            return y - self.layer(self.stem(x + 1))


def test_a_layer_that_needs_its_gradient_in_one_of_two_calls_is_compensated():
    compensation = surge.compensate_(Siamese(), example_input=torch.randn(2, 8))
    assert list(compensation.paths) == ["layer"] and not compensation.skipped


def test_a_layer_behind_two_clamps_cannot_be_injected_above():
    with pytest.raises(ConfigError, match="is not the output of a Hardtanh"):
        surge.compensate_(
            Siamese(clamps=2), aux_input="above_clamp", example_input=torch.randn(2, 8)
        )


def test_a_dose_of_what_is_clipped_needs_a_method_that_clips():
    with pytest.raises(NoLayersMatchedError, match="irnet clips nothing"):
        compensated("irnet", dose="clipped_share")


def test_alignment_that_reentrant_checkpointing_hides_is_not_silent():
    model, _ = compensated(align=0.5)
    hidden = model[:3](torch.randn(4, 6))
    checkpoint(model[3], hidden, use_reentrant=True)
    with pytest.warns(SurgeWarning, match="use_reentrant=False"):
        assert surge.extra_loss(model) == 0
    checkpoint(model[3], hidden, use_reentrant=False)
    assert surge.extra_loss(model).requires_grad


def test_checkpointing_above_a_clamp_takes_the_clamp_along_or_is_refused():
    example = torch.randn(4, 6)

    def made():
        torch.manual_seed(0)
        return compensated("bnn", aux_input="above_clamp", example_input=example)

    def gradients(*parts):
        model, compensation = made()
        for k in range(2):
            h = model[:2](example * (k + 1))
            for part, again in parts:
                step = part(model)
                h = checkpoint(step, h, use_reentrant=False) if again else step(h)
            (h * (k + torch.arange(3.0))).sum().backward(retain_graph=True)
        return compensation.parameters()[0].grad

    plain = gradients((lambda m: m[2:], False))
    assert torch.equal(gradients((lambda m: m[2:], True)), plain)
    with pytest.raises(UnsupportedLayerError, match="checkpoint both together"):
        gradients((lambda m: m[2], False), (lambda m: m[3], True))


def test_copies_follow_nobody_and_say_so(monkeypatch):
    monkeypatch.setattr(Watch, "PATIENCE", 5)
    model, compensation = compensated(every=3)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    compensation.follow(optimizer)

    def step(model, optimizer):
        optimizer.zero_grad()
        model(torch.randn(4, 6)).square().mean().backward()
        optimizer.step()

    step(model, optimizer)
    model, compensation, optimizer = copy.deepcopy((model, compensation, optimizer))
    with pytest.warns(SurgeWarning, match="never updated"):
        for _ in range(6):
            step(model, optimizer)
    before = compensation.scales()
    compensation.follow(optimizer)
    step(model, optimizer)
    assert compensation.steps == 2 and compensation.scales() != before
    content = io.BytesIO()
    torch.save((model, compensation), content)
    content.seek(0)
    model, compensation = torch.load(content, weights_only=False)
    compensation.follow(torch.optim.SGD(model.parameters(), lr=0.1))


def test_a_weight_that_is_made_anew_in_every_forward_keeps_all_its_norms():
    scales = []
    for wrapped in (False, True):
        torch.manual_seed(0)
        model, compensation = compensated("bnn")
        if wrapped:
            prune.identity(model[3], "weight")
        for k in range(2):
            (model(torch.randn(4, 6)) * (k + 1)).square().sum().backward()
        compensation.step()
        scales.append(compensation.scales()["3"])
    assert scales[0] == scales[1]


def test_a_model_without_values_or_without_gradients_is_refused():
    layers = [nn.Linear(4, 4), surge.BinaryLinear(4, 4)]
    with pytest.raises(ConfigError, match=r'"1" has no values yet \(device meta\)'):
        surge.compensate_(nn.Sequential(*layers).to("meta"))
    with torch.inference_mode(), pytest.raises(ConfigError, match="cannot be trained"):
        surge.compensate_(nn.Sequential(surge.BinaryLinear(4, 4)))


class Elsewhere(TorchFunctionMode):
    """torch.set_default_device("cuda"), without a GPU: a generator of the CPU must say so."""

    def __torch_function__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        if kwargs.get("generator") is not None:
            assert str(kwargs.get("device")) == "cpu", func
        return func(*args, **kwargs)


@pytest.mark.parametrize("method", ["recu", "rbnn"])
@pytest.mark.parametrize(
    "options",
    [{}, {"auxiliary": "pointwise"}, {"noise": True}, {"share": 0.5}],
    ids=["weight", "pointwise", "noise", "share"],
)
def test_what_is_drawn_does_not_depend_on_the_default_device(method, options):
    states = []
    for mode in (nullcontext(), Elsewhere()):
        with mode:
            model = cnn(method)
            surge.compensate_(model, **options)
        states.append(model.state_dict())
    assert_same_tensors(*states)
