"""Compiled steps that keep less for the backward: the same gradients from fewer bytes."""

import pytest
import torch
from torch import nn
from torch._functorch import config

import surge
from surge.errors import ConfigError
from surge.train.distributed import World
from surge.train.mode import choose_mode
from surge.train.step import compiled_step

CPU, GPU = torch.device("cpu"), torch.device("cuda:0")


def gradients_and_bytes(*, lean):
    torch.manual_seed(0)
    net = nn.Sequential(
        nn.BatchNorm2d(8),
        surge.BinaryConv2d(8, 8, 3, padding=1, method="bireal"),
        nn.BatchNorm2d(8),
        surge.BinaryConv2d(8, 8, 3, padding=1, method="bireal"),
    )
    surge.compensate_(net, eta=0.3)
    kept = {}

    def pack(tensor):
        kept[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
        return tensor

    torch._dynamo.reset()  # code that is compiled already would be used again
    step = compiled_step(lambda x: net(x).square().mean(), net, lean=lean)
    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        loss = step(torch.randn(4, 8, 8, 8))
    torch.autograd.backward(loss)
    return {name: p.grad for name, p in net.named_parameters()}, sum(kept.values())


def test_gradients_are_the_same_from_fewer_bytes():
    before = config.ban_recompute_used_far_apart
    expected, usual = gradients_and_bytes(lean=False)
    found, fewer = gradients_and_bytes(lean=True)
    assert config.ban_recompute_used_far_apart is before
    assert fewer < 0.8 * usual
    for name, value in expected.items():
        torch.testing.assert_close(found[name], value, rtol=1e-4, atol=1e-6)


def test_mode_says_so():
    assert str(choose_mode(GPU, World(), None, None, lean=True)) == "compiled and captured, lean"
    assert str(choose_mode(CPU, World(), True, None, lean=True)) == "compiled, lean"


@pytest.mark.parametrize(
    ("device", "size", "compiled"), [(CPU, 1, None), (GPU, 1, False), (GPU, 2, None)]
)
def test_only_compiled_steps_of_one_process_are_lean(device, size, compiled):
    with pytest.raises(ConfigError, match="--lean needs steps that one process compiles"):
        choose_mode(device, World(0, size), compiled, None, lean=True)


def test_detectors_are_refused():
    with pytest.raises(ConfigError, match="--lean needs steps that all do the same"):
        choose_mode(GPU, World(), None, None, fixed=False, lean=True)
