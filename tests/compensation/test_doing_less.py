"""Variants that do less: weights that stay, fewer layers, fewer bits."""

import copy
import statistics

import pytest
import torch
import torch.nn.functional as F
from sklearn.datasets import load_digits
from torch import nn

import surge
from surge.compensation.dry_run import clipped_share
from surge.errors import ConfigError, SurgeWarning
from surge.layers.hooks import binary_layers
from tests.nets import assert_near, every_kind, injected, mlp, pair, rows


def deep(width=16, layers=6):
    """A chain whose later layers see larger, hence more clipped, inputs."""
    torch.manual_seed(0)
    net = nn.Sequential(
        nn.Linear(8, width), *(nn.Linear(width, width) for _ in range(layers)), nn.Linear(width, 2)
    )
    with pytest.warns(SurgeWarning, match="normalisation"):
        surge.binarize_(net, "bnn")
    return net


@every_kind
def test_frozen_weight_injects_alike_and_never_learns(method, case):
    plain, compensated, _ = pair(case, method, fixed_scale=0.5, objective="frozen")
    _, learning, _ = pair(case, method, fixed_scale=0.5)
    batch = case.batch(2.0)
    frozen = injected(plain, compensated, batch)[1]
    assert_near(frozen, injected(copy.deepcopy(plain), learning, batch)[1])
    weights = [p for _, layer in binary_layers(compensated) for p in layer.auxiliary.parameters()]
    assert weights and all(p.grad is None and not p.requires_grad for p in weights)


def test_frozen_compensation_follows_an_optimizer_that_leaves_it_alone():
    net = mlp()
    compensation = surge.compensate_(net, objective="frozen")
    before = [p.clone() for p in compensation.parameters()]
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9, weight_decay=0.1)
    compensation.follow(optimizer)
    scales = compensation.scales()
    net(rows()[0]).square().sum().backward()
    optimizer.step()
    assert compensation.scales() != scales
    assert all(torch.equal(a, b) for a, b in zip(before, compensation.parameters(), strict=True))


def test_weights_learn_in_every_third_step_and_inject_in_all():
    net = mlp()
    compensation = surge.compensate_(net, every=3)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)
    compensation.follow(optimizer)
    learned = []
    for _ in range(7):
        before = [p.clone() for p in compensation.parameters()]
        optimizer.zero_grad()
        net(rows()[0]).square().sum().backward()
        assert all(path.squares("auxiliary") > 0 for path in compensation.paths.values())
        optimizer.step()
        pairs = zip(before, compensation.parameters(), strict=True)
        learned.append(not all(torch.equal(a, b) for a, b in pairs))
    assert learned == [True, False, False, True, False, False, True]


@pytest.mark.parametrize(
    "options",
    [{"every": 0}, {"every": 2, "auxiliary": "tied"}, {"every": 2, "objective": "frozen"}],
    ids=str,
)
def test_seldom_learning_needs_a_weight_that_learns(options):
    with pytest.raises(ConfigError, match="every"):
        surge.compensate_(mlp(), **options)


@pytest.mark.parametrize("share", [0.01, 0.34, 0.5, 1.0])
def test_share_counts_layers_and_says_what_is_left_out(share):
    compensation = surge.compensate_(deep(), share=share)
    assert len(compensation.paths) == max(1, round(6 * share))
    left = [name for name, why in compensation.skipped.items() if "share" in why]
    assert len(left) == 6 - len(compensation.paths)


def test_random_layers_depend_on_the_seed_alone():
    found = [
        tuple(surge.compensate_(deep(), share=0.5, seed=seed).paths) for seed in (0, 0, 1, 2, 3)
    ]
    assert found[0] == found[1] and len(set(found)) > 1


def normalised():
    """A net whose norms tell training from testing: untrained, its inputs are far from 0."""
    torch.manual_seed(0)
    units = [
        (nn.BatchNorm1d(16), nn.Hardtanh(), surge.BinaryLinear(16, 16, method="recu"))
        for _ in range(6)
    ]
    return nn.Sequential(nn.Linear(8, 16), *(part for unit in units for part in unit))


@pytest.mark.parametrize("make", [deep, normalised])
def test_salient_layers_are_those_clipped_most_in_training(make):
    net, batch = make(), 5 + torch.randn(64, 8, generator=torch.Generator().manual_seed(1))
    shares, trained = {}, copy.deepcopy(net)
    for name, layer in binary_layers(trained):
        layer.register_forward_pre_hook(
            lambda module, args, name=name: shares.update({name: clipped_share(module, args[0])})
        )
    trained.train()(batch)
    before = [buffer.clone() for buffer in net.buffers()]
    chosen = surge.compensate_(net, share=0.5, chosen="saliency", example_input=batch).paths
    surge.strip_(net)
    assert all(map(torch.equal, before, net.buffers()))
    most = sorted(shares, key=lambda name: -shares[name])[:3]
    assert set(chosen) == set(most) and len(set(shares.values())) > 3


def test_fp8_changes_the_injection_of_linear_layers_a_little():
    nets = []
    for arithmetic in ("same", "fp8"):
        net = deep()
        surge.compensate_(net, fixed_scale=0.5, arithmetic=arithmetic)
        nets.append(net)
    batch = torch.randn(32, 8, generator=torch.Generator().manual_seed(1))
    for net in nets:
        net(batch).square().sum().backward()
    exact, rounded = (dict(binary_layers(net))["6"].auxiliary.weight.grad for net in nets)
    error = (exact - rounded).norm() / exact.norm()
    assert 1e-4 < error < 0.1
    assert torch.equal(nets[0](batch), nets[1](batch))


def accuracy_on_digits(arithmetic, seed):
    """Train two binary layers on 1,200 digits, an eighth of the gradient being auxiliary."""
    digits = load_digits()
    pixels = torch.tensor(digits.data / 8 - 1, dtype=torch.float32)
    labels = torch.tensor(digits.target)
    torch.manual_seed(seed)
    train, test = torch.randperm(len(labels)).split([1200, len(labels) - 1200])
    net = nn.Sequential(
        nn.Linear(64, 128),
        nn.BatchNorm1d(128),
        surge.BinaryLinear(128, 128, method="bireal"),
        nn.BatchNorm1d(128),
        surge.BinaryLinear(128, 128, method="bireal"),
        nn.BatchNorm1d(128),
        nn.Linear(128, 10),
    )
    compensation = surge.compensate_(net, eta=0.125, arithmetic=arithmetic, seed=seed)
    optimizer = torch.optim.Adam(net.parameters(), lr=3e-3)
    compensation.follow(optimizer)
    for _ in range(8):
        for batch in train[torch.randperm(1200)].split(100):
            optimizer.zero_grad()
            F.cross_entropy(net(pixels[batch]), labels[batch]).backward()
            optimizer.step()
    right = net.eval()(pixels[test]).argmax(dim=1) == labels[test]
    return 100 * float(right.float().mean())


def test_fp8_leaves_accuracy_unharmed():
    exact, rounded = (
        [accuracy_on_digits(arithmetic, seed) for seed in range(4)]
        for arithmetic in ("same", "fp8")
    )
    assert min(exact) > 94 and exact != rounded
    lost = statistics.mean(exact) - statistics.mean(rounded)
    assert lost < 0.5  # 3 of 597 digits, less than two seeds differ by


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"share": 1.5}, "at most 1"),
        ({"share": 0}, "positive"),
        ({"chosen": "saliancy"}, "saliency"),
        ({"share": 0.5, "chosen": "saliency"}, "example_input"),
        ({"objective": "frozen", "align": 1.0}, "forbids"),
        ({"objective": "frozen", "auxiliary": "tied"}, "no weight of its own"),
        ({"arithmetic": "fp4"}, "Accepted: same, fp8"),
        ({"arithmetic": "fp8", "auxiliary": "leaky_tail"}, "does not combine"),
        ({"arithmetic": "fp8", "auxiliary": "low_rank"}, "too small"),
    ],
)
def test_impossible_settings_are_refused(options, words):
    with pytest.raises(ConfigError, match=words):
        surge.compensate_(deep(), **options)
