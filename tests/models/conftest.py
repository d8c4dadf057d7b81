"""What the tests of the architectures share."""

import pytest
import torch
from torch import nn


def count_macs(model, example, layers):
    """Multiply-accumulates of the given convolutions for one forward pass, counted by hooks."""
    total = 0

    def add(conv, _, output):
        nonlocal total
        taps = conv.weight[0].numel()
        total += output.numel() * taps

    hooks = [layer.register_forward_hook(add) for layer in layers]
    with torch.no_grad():
        model.eval()(example)
    for hook in hooks:
        hook.remove()
    return total


@pytest.fixture
def macs():
    return count_macs


@pytest.fixture
def inner_convs():
    """Return a function: model -> every 3x3 convolution but the first, the ones made binary."""

    def find(model):
        convs = [module for module in model.modules() if isinstance(module, nn.Conv2d)]
        return [conv for conv in convs[1:] if conv.kernel_size == (3, 3)]

    return find
