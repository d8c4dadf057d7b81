"""One pass over G gives what two paths give apart."""

import copy

import pytest
import torch
from torch import nn

import surge
from surge.compensation import joint
from surge.layers.hooks import binary_layers

DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)]


@pytest.fixture
def joined(monkeypatch):
    """Let the operator be used wherever it is exact, on any device; count its uses."""
    used = []
    product = joint.joint_product

    def counted(*arguments):
        used.append(arguments[0].shape)
        return product(*arguments)

    def switch(on):
        monkeypatch.setattr(joint, "_on_gpu", lambda z: on)
        monkeypatch.setattr(joint, "joint_product", counted)
        return used

    return switch


def convolutional(stride=1, dilation=1, padding=1):
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(3, 8, 3),
        nn.Conv2d(8, 12, 3, stride=stride, padding=padding, dilation=dilation, bias=False),
        nn.BatchNorm2d(12),
        nn.Conv2d(12, 8, 1),
        nn.BatchNorm2d(8),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(8, 2),
    )


NETS = {
    "conv": (convolutional, (4, 3, 11, 9)),
    "stride": (lambda: convolutional(stride=2), (4, 3, 11, 9)),
    "dilation": (lambda: convolutional(dilation=2, padding=2), (2, 3, 12, 12)),
}


def gradients(net, batch):
    net = copy.deepcopy(net)
    net(batch).float().square().sum().backward()
    found = {name: p.grad for name, p in net.named_parameters()}
    for name, layer in binary_layers(net):
        for probe, tensor in layer.auxiliary.probes.items():
            found[f"{name} {probe}"] = tensor.grad
    return {name: grad for name, grad in found.items() if grad is not None}


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("auxiliary", ["independent", "tied", "copied", "frozen"])
@pytest.mark.parametrize("method", ["bireal", "reactnet"])
@pytest.mark.parametrize("name", NETS)
def test_gradients_are_those_of_both_paths_apart(name, method, auxiliary, device, joined):
    build, shape = NETS[name]
    net = build()
    surge.binarize_(net, method)
    options = {"objective": "frozen"} if auxiliary == "frozen" else {"auxiliary": auxiliary}
    surge.compensate_(net, fixed_scale=0.3, **options)
    net.to(device)
    batch = torch.randn(shape, generator=torch.Generator().manual_seed(1)).to(device)
    used = joined(False)
    apart = gradients(net, batch)
    assert not used
    joined(True)
    together = gradients(net, batch)
    assert len(used) == 2
    assert apart.keys() == together.keys()
    for key, wanted in apart.items():
        torch.testing.assert_close(
            together[key], wanted, rtol=1e-4, atol=1e-5 * float(wanted.abs().max()) + 1e-8, msg=key
        )


def test_output_does_not_change(joined):
    net = convolutional()
    surge.binarize_(net, "bireal")
    plain = copy.deepcopy(net)
    surge.compensate_(net)
    batch = torch.randn(4, 3, 11, 9)
    joined(True)
    assert torch.equal(net(batch), plain(batch))


def test_compiled_gradients_are_the_eager_ones(joined):
    net = convolutional()
    surge.binarize_(net, "bireal")
    surge.compensate_(net, fixed_scale=0.3)
    batch = torch.randn(4, 3, 11, 9)
    joined(True)
    eager = gradients(net, batch)
    compiled = copy.deepcopy(net)
    torch._dynamo.reset()
    torch.compile(
        lambda x: compiled(x).float().square().sum(), fullgraph=True, backend="aot_eager"
    )(batch).backward()
    for name, p in compiled.named_parameters():
        if p.grad is not None:
            torch.testing.assert_close(p.grad, eager[name], rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize(
    "options",
    [
        {"scope": "clipped"},
        {"dose": "clipped_share"},
        {"noise": True},
        {"auxiliary": "pointwise"},
        {"weight_side": 0.1},
    ],
    ids=str,
)
def test_other_settings_keep_their_two_paths(options, joined):
    net = convolutional()
    surge.binarize_(net, "bireal")
    surge.compensate_(net, only=("1",), **options)
    used = joined(True)
    net(torch.randn(4, 3, 11, 9)).sum().backward()
    assert not used


def test_output_scales_keep_their_two_paths(joined):
    net = convolutional()
    surge.binarize_(net, "recu")
    surge.compensate_(net)
    used = joined(True)
    net(torch.randn(4, 3, 11, 9)).sum().backward()
    assert not used


def test_wide_and_grouped_layers_keep_their_two_paths(joined):
    for options in ({"in_channels": 65, "out_channels": 8}, {"groups": 2}):
        sizes = {"in_channels": 8, "out_channels": 8, "kernel_size": 3, **options}
        net = nn.Sequential(
            nn.Conv2d(3, sizes["in_channels"], 3), nn.Conv2d(**sizes), nn.Conv2d(8, 2, 1)
        )
        surge.binarize_(net, "bireal")
        surge.compensate_(net)
        used = joined(True)
        net(torch.randn(2, 3, 9, 9)).sum().backward()
        assert not used
