"""Pack a model, run the file in every tier, and compare with torch."""

from contextlib import contextmanager

import numpy as np
import torch
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

from surge.export import pack
from surge.layers import StemConv2d
from surge.layers.hooks import binary_layers
from surge.models.resnet import CifarResNet, DoubleShortcutBlock

CLOSE = 1e-4
LEARNT = {
    "shift": (-0.5, 0.5),
    "shift_in": (-0.5, 0.5),
    "shift_out": (-0.5, 0.5),
    "slope": (-0.5, 0.5),
    "input_centre": (-0.5, 0.5),
    "input_distance": (0.5, 1.5),
    "input_lower": (-1.5, -0.5),
    "input_upper": (0.5, 1.5),
}
"""Where training may take what methods learn about inputs, by the parameter's name."""


class Applies(nn.Module):
    """A function as a module."""

    def __init__(self, function):
        super().__init__()
        self.function = function

    def forward(self, x):
        return self.function(x)


def small_resnet(widths, classes):
    """Build ResNet-20's kind of network with one block a stage."""
    return CifarResNet(
        DoubleShortcutBlock,
        widths,
        depth=1,
        classes=classes,
        shortcut="pool",
        activation="hardtanh",
        stem_activation="hardtanh",
    )


def settle(model, x, *, seed=0):
    """Give BatchNorms real statistics and gammas of both signs, then switch to evaluation."""
    torch.manual_seed(seed)
    model.train()
    with torch.no_grad():
        for _ in range(3):
            model(x + 0.1 * torch.randn_like(x))
        for module in model.modules():
            if isinstance(module, _BatchNorm):
                sign = torch.where(torch.rand(module.num_features) < 0.3, -1.0, 1.0)
                module.weight.copy_(sign * (0.5 + torch.rand(module.num_features)))
                module.bias.uniform_(-0.5, 0.5)
            elif isinstance(module, nn.PReLU):
                module.weight.uniform_(-0.5, 0.5)
        for name, parameter in model.named_parameters():
            if (last := name.rpartition(".")[2]) in LEARNT:
                parameter.uniform_(*LEARNT[last])
    return model.eval()


def expected(model, x):
    with torch.no_grad():
        return model(x).numpy()


def margin(model, x):
    """Return how close to zero a value that is not zero comes before any sign.

    Below the rounding of fp32 two right implementations may differ in that sign, and then in
    everything behind it: such draws say nothing.
    """
    smallest = [np.inf]

    def note(layer):
        def hook(_module, args):
            z = layer.method.prepare_input(args[0]).abs()
            nonzero = z[z > 0]
            if nonzero.numel():
                smallest[0] = min(smallest[0], float(nonzero.min()))

        return hook

    handles = [layer.register_forward_pre_hook(note(layer)) for _, layer in binary_layers(model)]
    try:
        expected(model, x)
    finally:
        for handle in handles:
            handle.remove()
    return smallest[0]


def run_every_tier(engine, path, x):
    """Run a file in every tier; all must agree with the scalar one bit for bit."""
    loaded = engine.load(path)
    results = {}
    for tier in engine.tiers():
        loaded.tier = tier
        results[tier] = loaded.run(x.numpy())
    for tier, result in results.items():
        assert result.tobytes() == results["scalar"].tobytes(), f"{tier} differs from scalar"
    return results["scalar"]


def packed_output(engine, model, x, path, **options):
    """Pack with exact weights unless told otherwise, and run."""
    pack(model, x[:1], path, **{"rest": "fp32", **options})
    return run_every_tier(engine, path, x)


def assert_close(actual, wanted):
    """Compare relative to the largest output, and the decision of each sample."""
    size = max(float(np.abs(wanted).max()), 1.0)
    np.testing.assert_allclose(actual, wanted, rtol=0, atol=CLOSE * size)


@contextmanager
def rounded_weights(model, cast):
    """Replace the weights of float layers by what a narrower type keeps of them."""
    kept = {}
    layers = [m for m in model.modules() if type(m) in (nn.Conv2d, StemConv2d, nn.Linear)]
    for layer in layers:
        kept[layer] = layer.weight.detach().clone()
        layer.weight.data = cast(layer.weight.data)
    try:
        yield
    finally:
        for layer, weight in kept.items():
            layer.weight.data = weight
