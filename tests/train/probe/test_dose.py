"""The delivered dose against a computation by hand, and that measuring it changes nothing."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import surge
from surge.layers.hooks import binary_layers
from surge.train.probe.dose import DoseMeter
from tests.nets import assert_same_tensors, binarized, no_pitfalls
from tests.train.small import make_trainer, small_recipe, trained

SPREAD = 1.5
"""Large enough that the clamps are often saturated."""


def network(method, *, above=False):
    torch.manual_seed(0)
    net = nn.Sequential(
        nn.Linear(6, 8),
        nn.Hardtanh(),
        nn.Linear(8, 10),
        nn.BatchNorm1d(10),
        nn.Linear(10, 9),
        nn.BatchNorm1d(9),
        nn.Hardtanh(),
        nn.Linear(9, 3),
    )
    binarized(net, method)
    x = SPREAD * torch.randn(16, 6)
    labels = torch.randint(3, (16,))
    options = {"aux_input": "above_clamp", "skip": "4"} if above else {}
    compensation = surge.compensate_(net, eta=0.3, example_input=x, **options)
    with torch.no_grad():
        for path in compensation.paths.values():
            path.scale.fill_(0.25)
    return net, compensation, x, labels


def by_hand(net, x, labels):
    """Return the dose of layer 2 (behind a clamp) and of layer 4 (behind a BatchNorm).

    The batch is run through the plain operations once; every gradient is written out.
    """
    net.train()
    p = net[0](x)
    c = net[1](p)
    y2 = net[2](c)
    b = net[3](y2)
    y4 = net[4](b)
    loss = F.cross_entropy(net[7](net[6](net[5](y4))), labels)
    g2, g4 = torch.autograd.grad(loss, [y2, y4])

    def dose(layer, values, gradient, mask):
        z = values.detach().requires_grad_()
        bits = layer.method.binarize_weight(layer.weight).detach()
        (surrogate,) = torch.autograd.grad(layer.method.binarize(z).sum(), z)
        main = gradient @ bits * surrogate
        auxiliary = layer.auxiliary.scale * gradient @ layer.auxiliary.weight.detach()
        return float((mask * auxiliary).norm() / (mask * main).norm())

    clamp = (p.detach().abs() < 1).float()
    assert 0.2 < float(clamp.mean()) < 0.8
    return {"2": dose(net[2], c, g2, clamp), "4": dose(net[4], b, g4, torch.ones_like(b))}


def loss_of(net, x, labels):
    return lambda: F.cross_entropy(net(x), labels)


def test_dose_equals_the_computation_by_hand():
    net, compensation, x, labels = network("bnn")
    expected = by_hand(net, x, labels)
    net, compensation, x, labels = network("bnn")
    measured = DoseMeter(net, compensation, x).measure(loss_of(net, x, labels))
    assert measured == pytest.approx(expected, rel=1e-4)


def test_dose_of_recu_goes_through_its_division():
    """ReCU divides by the spread of each sample; both gradients are pulled through that."""
    net, compensation, x, labels = network("recu")
    surge.on_epoch(net, 1, 10)
    meter = DoseMeter(net, compensation, x)
    measured = meter.measure(loss_of(net, x, labels))

    net.train()
    p = net[0](x)
    y = net[2](net[1](p))
    rest = net[7](net[6](net[5](net[4](net[3](y)))))
    (gradient,) = torch.autograd.grad(F.cross_entropy(rest, labels), y)
    point = p.detach().requires_grad_()
    (both,) = torch.autograd.grad(net[2](net[1](point)), point, gradient)
    surge.strip_(net)
    (main,) = torch.autograd.grad(net[2](net[1](point)), point, gradient)
    assert measured["2"] == pytest.approx(float((both - main).norm() / main.norm()), rel=1e-4)


def test_dose_above_the_clamp_loses_nothing_to_it():
    net, compensation, x, labels = network("bnn", above=True)
    meter = DoseMeter(net, compensation, x)
    assert meter.clamps == {"2": net[1]}
    assert net[1].preactivation is None  # the dry run leaves no graph behind
    measured = meter.measure(loss_of(net, x, labels))

    net.train()
    p = net[0](x)
    y = net[2](net[1](p))
    rest = net[7](net[6](net[5](net[4](net[3](y)))))
    (gradient,) = torch.autograd.grad(F.cross_entropy(rest, labels), y)
    layer, mask = net[2], (p.detach().abs() < 1).float()
    main = mask * (gradient @ layer.method.binarize_weight(layer.weight).detach())
    auxiliary = 0.25 * gradient @ layer.auxiliary.weight.detach()
    assert measured["2"] == pytest.approx(float(auxiliary.norm() / main.norm()), rel=1e-4)


def everything(net, compensation):
    state = {name: tensor.clone() for name, tensor in net.state_dict().items()}
    probes = {
        f"{name}.{key}": None if probe.grad is None else probe.grad.clone()
        for name, path in compensation.paths.items()
        for key, probe in path.probes.items()
    }
    grads = {n: None if p.grad is None else p.grad.clone() for n, p in net.named_parameters()}
    modes = {name: module.training for name, module in net.named_modules()}
    return state, {**probes, **grads}, modes, torch.get_rng_state()


@pytest.mark.parametrize("options", [{}, {"noise": True}, {"align": 1.0}, {"auxiliary": "tied"}])
def test_measuring_changes_nothing(options):
    torch.manual_seed(0)
    net = binarized(
        nn.Sequential(
            nn.Linear(6, 8), nn.Hardtanh(), nn.Linear(8, 8), nn.BatchNorm1d(8), nn.Linear(8, 3)
        )
    )
    x, labels = torch.randn(5, 6), torch.randint(3, (5,))
    compensation = surge.compensate_(net, example_input=x, **options)
    F.cross_entropy(net(x), labels).backward()
    net.eval()
    forwards = [getattr(path, "forwards", None) for path in compensation.paths.values()]
    meter = DoseMeter(net, compensation, x)
    state, grads, modes, random = everything(net, compensation)
    assert meter.measure(loss_of(net, x, labels))["2"] > 0
    state_after, grads_after, modes_after, random_after = everything(net, compensation)
    assert_same_tensors(state_after, state)
    assert list(grads_after) == list(grads)
    for name, grad in grads.items():
        after = grads_after[name]
        assert (after is None) if grad is None else torch.equal(after, grad), name
    assert modes_after == modes
    assert torch.equal(random_after, random)
    assert [getattr(path, "forwards", None) for path in compensation.paths.values()] == forwards
    assert all(getattr(p, "alignment", None) is None for p in compensation.paths.values())
    assert not any(m._forward_hooks or m._forward_pre_hooks for m in net.modules())


def test_rows_hold_the_dose_every_so_often_and_at_the_end(tmp_path):
    recipe = small_recipe(epochs=4, lr=0.01)
    _, rows = trained(tmp_path, recipe, dose_every=2)
    assert ["delivered" in row for row in rows] == [True, False, True, True]
    assert all(0 < row["delivered"] < 1 for row in rows if "delivered" in row)


@pytest.mark.parametrize("row", ["cnn-recu-surge", "cnn-recu-surge-noise", "cnn-recu-surge-above"])
def test_training_is_the_same_with_and_without_measuring(tmp_path, monkeypatch, row):
    recipe = small_recipe(row)
    measured, _ = trained(tmp_path / "a", recipe, dose_every=1)
    trainer = make_trainer(tmp_path / "b", recipe)
    trainer.meter = None
    trainer.run()
    assert_same_tensors(dict(trainer.parts.model.state_dict()), measured)


def test_meter_finds_the_clamps_of_the_digits_network(tmp_path):
    trainer = make_trainer(tmp_path)
    features = trainer.parts.model.features
    assert trainer.meter.clamps == {
        "features.conv2": features.act1,
        "features.conv3": features.act2,
    }


def test_layer_that_takes_no_part_is_left_out():
    class Idle(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.used, self.idle = nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 4)
            self.last = nn.Linear(4, 3)

        def forward(self, x):
            y = self.first(x)
            self.idle(y)
            return self.last(self.used(y))

    torch.manual_seed(0)
    net, x = binarized(Idle()), torch.randn(5, 4)
    with no_pitfalls():
        compensation = surge.compensate_(net, example_input=x)
    assert dict(binary_layers(net)).keys() == {"used", "idle"}
    measured = DoseMeter(net, compensation, x).measure(loss_of(net, x, torch.zeros(5).long()))
    assert set(measured) == {"used"}
