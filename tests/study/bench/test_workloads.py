"""The networks that are measured by name."""

import pytest
import torch
from torch import nn

from surge.errors import ConfigError
from surge.layers.hooks import binary_layers
from surge.study.bench.workloads import NETWORKS, with_batch, workload


@pytest.mark.parametrize("name", ["resnet20", "conv512", "linear768x3072"])
def test_binary_network_and_float_twin_have_the_same_sizes(name):
    work = workload(name)
    with torch.no_grad():
        binary, floating = work.binary(work.example), work.floating(work.example)
    assert binary.shape == floating.shape and not work.binary.training
    layers = [layer for _, layer in binary_layers(work.binary)]
    assert layers and not list(binary_layers(work.floating))
    inner = [m for m in work.floating.modules() if isinstance(m, nn.Conv2d | nn.Linear)]
    shapes = [layer.weight.shape for layer in layers]
    assert all(shape in [m.weight.shape for m in inner] for shape in shapes)
    if work.layers > 1:
        assert len(layers) == work.layers


def test_signs_are_mixed_as_in_a_trained_network():
    work = workload("resnet20")
    shares = []
    for _, layer in binary_layers(work.binary):
        layer.register_forward_pre_hook(
            lambda _, args: shares.append(float((args[0] >= 0).float().mean()))
        )
    work.binary(work.example)
    assert len(shares) == 18 and all(0.2 < share < 0.8 for share in shares)


def test_every_issue_network_is_known():
    wanted = {"resnet18-224", "resnet20", "resnet18-cifar", "vggsmall", "linear768x3072"}
    assert wanted | {f"conv{n}" for n in (64, 128, 256, 512)} == set(NETWORKS)


def test_size_and_batch_can_be_chosen():
    assert with_batch(workload("resnet20", size=48), 3).example.shape == (3, 3, 48, 48)
    state = torch.get_rng_state()
    workload("conv512")
    assert torch.equal(state, torch.get_rng_state())


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: workload("resnet2"), 'Did you mean "resnet20"'),
        (lambda: workload("vggsmall", size=64), "takes inputs of"),
        (lambda: workload("resnet20", size=8), "is below 16"),
        (lambda: with_batch(workload("conv512"), 0), "--batch 0"),
    ],
    ids=["name", "fixed", "small", "batch"],
)
def test_mistakes_are_said(call, message):
    with pytest.raises(ConfigError, match=message):
        call()
