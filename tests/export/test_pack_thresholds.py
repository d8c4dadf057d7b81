"""Norms between binary layers become intervals of whole numbers."""

import json
import math

import pytest
import torch
from safetensors import safe_open
from safetensors.numpy import load_file
from torch import nn

import surge
from surge.export import pack
from surge.models import build_model
from surge.summary import summary
from tests.export.packing import Applies, assert_close, expected, packed_output
from tests.nets import binarized


def nodes_of(path):
    with safe_open(path, "numpy") as file:
        return json.loads(file.metadata()["graph"])["nodes"]


def packed_interval(tmp_path, norm, *, middle=()):
    """Pack conv, norm, conv and return the ends that are stored for the norm."""
    convs = [nn.Conv2d(3, 4, 3, bias=False), nn.Conv2d(4, 2, 1, bias=False)]
    model = nn.Sequential(convs[0], *middle, norm, nn.Hardtanh(), convs[1])
    binarized(model, "bnn", keep_first=False, keep_last=False).eval()
    pack(model, torch.zeros(1, 3, 8, 8), tmp_path / "m.surge")
    tensors = load_file(tmp_path / "m.surge")
    (node,) = [node for node in nodes_of(tmp_path / "m.surge") if "activation" in node]
    assert node["activation"]["kind"] == "between" and not {"scale", "bias"} & node.keys()
    return tensors[node["activation"]["low"]].tolist(), tensors[node["activation"]["high"]].tolist()


def norm_of(gamma, beta, mean):
    norm = nn.BatchNorm2d(4, eps=0.0)
    with torch.no_grad():
        norm.weight.copy_(torch.tensor(gamma))
        norm.bias.copy_(torch.tensor(beta))
    norm.running_mean.copy_(torch.tensor(mean))
    norm.running_var.fill_(4.0)
    return norm


@pytest.mark.parametrize("middle", [(), (nn.MaxPool2d(2),)], ids=["direct", "pooled"])
def test_interval_follows_the_sign_of_gamma(tmp_path, middle):
    # Zero exactly at the mean (a tie is +1), falling, never and always positive.
    norm = norm_of([1.0, -1.0, 0.0, 0.0], [0.0, 1.0, -1.0, 0.0], [3.0, 2.0, 0.0, 0.0])
    low, high = packed_interval(tmp_path, norm, middle=middle)
    inf = math.inf
    assert low == [3.0, -inf, inf, -inf]
    assert high == [inf, 4.0, -inf, inf]


def test_threshold_between_two_sums_is_the_next_one(tmp_path):
    norm = norm_of([2.0, 2.0, -2.0, -2.0], [0.0] * 4, [2.5, -2.5, 2.5, -2.5])
    low, high = packed_interval(tmp_path, norm)
    assert low == [3.0, -2.0, -math.inf, -math.inf]
    assert high == [math.inf, math.inf, 2.0, -3.0]


@pytest.mark.parametrize("channels", [33, 64, 96])
def test_chain_of_bits_gives_torchs_output(engine, tmp_path, channels):
    torch.manual_seed(0)
    layers = []
    for _ in range(3):
        layers += [nn.Conv2d(channels, channels, 3, padding=1, bias=False)]
        layers += [nn.BatchNorm2d(channels), nn.Hardtanh()]
    model = binarized(nn.Sequential(*layers), "bnn", keep_first=False, keep_last=False)
    x = torch.randn(3, channels, 7, 9)
    model.train()(x)
    for norm in (module for module in model if isinstance(module, nn.BatchNorm2d)):
        norm.weight.data.normal_()
        norm.bias.data.normal_()
        norm.weight.data[:3] = 0.0  # always the same sign
    assert_close(packed_output(engine, model.eval(), x, tmp_path / "m.surge"), expected(model, x))


def test_vgg_small_has_no_real_value_between_binary_layers(tmp_path):
    model = binarized(build_model("vgg_small"), "recu").eval()
    pack(model, torch.zeros(1, 3, 32, 32), tmp_path / "m.surge")
    kinds = {
        node["name"]: node.get("activation", {}).get("kind")
        for node in nodes_of(tmp_path / "m.surge")
    }
    inner = ("features.bn2", "features.conv3", "features.bn4", "features.conv5")
    assert all(kinds[name] == "between" for name in inner)
    assert kinds["features.bn6"] == "clamp", "the last one feeds a real layer"


def test_norm_with_other_readers_stays_real(tmp_path):
    class Twice(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.norm = nn.Conv2d(3, 4, 1, bias=False), nn.BatchNorm2d(4)
            self.second = nn.Conv2d(4, 4, 1, bias=False)

        def forward(self, x):
            y = self.norm(self.first(x))
            return self.second(y) + y

    model = binarized(Twice(), "bnn", keep_first=False, keep_last=False).eval()
    pack(model, torch.zeros(1, 3, 4, 4), tmp_path / "m.surge")
    assert all("activation" not in node for node in nodes_of(tmp_path / "m.surge"))


@pytest.mark.parametrize("pool", [True, False])
def test_ties_are_decided_as_in_torch_behind_a_flatten(engine, tmp_path, pool):
    torch.manual_seed(0)
    norm = nn.BatchNorm2d(16)
    norm.running_mean.copy_(torch.randint(1, 5, (16,)) * 2.0)  # sums of +-1 hit these
    norm.running_var.uniform_(0.1, 3)
    pools = [nn.MaxPool2d(2)] if pool else []
    last = nn.Linear(16 * (4 if pool else 16), 10, bias=False)
    first = nn.Conv2d(8, 16, 3, padding=1, bias=False)
    model = nn.Sequential(first, *pools, norm, nn.Hardtanh(), nn.Flatten(), last)
    binarized(model, "bnn", keep_first=False, keep_last=False).eval()
    x = torch.randn(16, 8, 4, 4)
    assert torch.equal(
        torch.as_tensor(packed_output(engine, model, x, tmp_path / "m.surge")),
        torch.as_tensor(expected(model, x)),
    )


def chain_with_ties(channels, *middle):
    """Binary convolutions around a norm whose result is often exactly zero, and what follows it."""
    norm = nn.BatchNorm2d(channels)
    norm.running_mean.copy_(torch.randint(-4, 5, (channels,)))
    norm.running_var.uniform_(0.5, 20)
    nn.init.uniform_(norm.weight, -2, 2)
    first, last = nn.Conv2d(3, channels, 3, bias=False), nn.Conv2d(channels, 4, 1, bias=False)
    return nn.Sequential(first, norm, *middle, last)


def assert_exact(engine, tmp_path, model, method="bnn", shift=None):
    """Binarise, pack and run: every bit is torch's; return the number of thresholds."""
    binarized(model, method, keep_first=False, keep_last=False).eval()
    for name, parameter in model.named_parameters():
        if name.endswith("method.shift"):
            nn.init.uniform_(parameter, *shift)
    x = torch.randn(50, 3, 6, 6)
    actual = packed_output(engine, model, x, tmp_path / "m.surge")
    assert torch.equal(torch.as_tensor(actual), torch.as_tensor(expected(model, x)))
    kinds = [node.get("activation", {}).get("kind") for node in nodes_of(tmp_path / "m.surge")]
    return kinds.count("between")


def test_norm_of_one_channel_is_a_threshold(engine, tmp_path):
    torch.manual_seed(0)
    assert assert_exact(engine, tmp_path, chain_with_ties(1)) == 1


@pytest.mark.parametrize("slope", [0.25, 0.0, -0.25])
@pytest.mark.parametrize("channels", [1, 2, 16])
def test_prelu_between_signs_is_part_of_the_threshold(engine, tmp_path, channels, slope):
    for draw in range(6):
        torch.manual_seed(draw)
        prelu, leaky = nn.PReLU(channels, slope), nn.LeakyReLU(slope)
        assert assert_exact(engine, tmp_path, chain_with_ties(channels, prelu)) == 1
        assert assert_exact(engine, tmp_path, chain_with_ties(channels, leaky)) == 1


@pytest.mark.parametrize("channels", [1, 5])
def test_shift_before_a_sign_is_part_of_the_threshold(engine, tmp_path, channels):
    for draw in range(6):
        torch.manual_seed(draw)
        rprelu = surge.RPReLU(channels)
        for parameter in rprelu.parameters():
            nn.init.uniform_(parameter, 0, 1)
        for middle in ((), (nn.PReLU(channels),), (rprelu,)):
            model = chain_with_ties(channels, *middle)
            assert assert_exact(engine, tmp_path, model, "reactnet", (-2, 2)) == 1


def test_shift_of_slopes_below_zero_stays_real(engine, tmp_path):
    torch.manual_seed(0)
    model = chain_with_ties(5, nn.PReLU(5, -0.5))
    model[1].running_mean.add_(0.3)  # no ties: the real way may round differently
    assert assert_exact(engine, tmp_path, model, "reactnet", (-2, 0)) == 0


def test_shift_behind_a_flatten_stays_real(engine, tmp_path):
    torch.manual_seed(0)
    layers = [nn.Conv2d(3, 1, 3, bias=False), nn.BatchNorm2d(1), nn.Flatten()]
    model = nn.Sequential(*layers, nn.Linear(16, 4, bias=False))
    assert assert_exact(engine, tmp_path, model, "reactnet", (-2, 2)) == 0


def test_readers_with_shifts_of_their_own_keep_them(engine, tmp_path):
    class Fork(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.norm = nn.Conv2d(3, 4, 1, bias=False), nn.BatchNorm2d(4)
            self.left, self.right = (nn.Conv2d(4, 4, 1, bias=False) for _ in range(2))

        def forward(self, x):
            y = self.norm(self.first(x))
            return self.left(y) + self.right(y)

    torch.manual_seed(0)
    assert assert_exact(engine, tmp_path, Fork(), "reactnet", (-2, 2)) == 0


@pytest.mark.parametrize(
    "divisor",
    [41.0, torch.tensor(55.0), torch.full((1, 9, 1, 1), 47.0)],
    ids=["number", "tensor", "vector"],
)
@pytest.mark.parametrize("pool", [True, False])
def test_division_before_a_sign_is_torchs(engine, tmp_path, divisor, pool):
    torch.manual_seed(0)
    scale = nn.Sequential(*([nn.MaxPool2d(2)] if pool else []), Applies(lambda x: x / divisor - 1))
    layers = nn.Conv2d(7, 9, 3, bias=False), scale, nn.Conv2d(9, 4, 1, bias=False)
    model = binarized(nn.Sequential(*layers), "bnn", keep_first=False, keep_last=False).eval()
    nn.init.ones_(model[0].weight)
    x = torch.randn(500, 7, 4, 4) + torch.randn(500, 1, 1, 1)
    assert bool((model[:2](x) == 0).any())
    packed = pack(model, x[:1], tmp_path / "m.surge")
    assert torch.equal(
        torch.as_tensor(packed_output(engine, model, x, tmp_path / "m.surge")),
        torch.as_tensor(expected(model, x)),
    )
    counted = summary(model, x[:1]).bytes
    if not isinstance(divisor, torch.Tensor):
        assert packed.tensor_bytes == counted, "an open end takes no bytes"


def test_a_shift_that_two_layers_share_counts_for_both(tmp_path):
    class Fork(nn.Module):
        def __init__(self):
            super().__init__()
            self.stem, self.norm = nn.Conv2d(3, 4, 3, bias=False), nn.BatchNorm2d(4)
            self.one, self.two = (nn.Conv2d(4, 2, 1, bias=False) for _ in range(2))

        def forward(self, x):
            x = self.norm(self.stem(x))
            return torch.cat([self.one(x), self.two(x)], 1)

    model = binarized(Fork(), "reactnet", keep_first=False, keep_last=False).eval()
    x = torch.zeros(1, 3, 8, 8)
    packed = pack(model, x, tmp_path / "m.surge")
    assert packed.folded_bytes > 0
    assert packed.tensor_bytes + packed.folded_bytes == summary(model, x).bytes
