"""Dimensions of one that come and go, alone and before every kind of layer."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import surge
from tests.export.packing import Applies, assert_close, expected, packed_output, settle

VECTORS = {
    "squeezed twice": lambda x: x.squeeze(-1).squeeze(-1),
    "squeezed at once": lambda x: x.squeeze((2, 3)),
    "indexed": lambda x: x[:, :, 0, 0],
    "indexed from the end": lambda x: x[..., -1, -1],
    "flattened twice": lambda x: x.flatten(2).flatten(1),
    "flattened": lambda x: torch.flatten(x, 1),
    "viewed": lambda x: x.view(x.size(0), -1),
    "viewed by its channels": lambda x: x.view(-1, 70),
    "there and back": lambda x: x.flatten(1)[:, :, None, None].squeeze(3).squeeze(2),
    "nothing to squeeze": lambda x: x.squeeze(1).flatten(1),
}
"""From ``[N, C, 1, 1]`` to ``[N, C]``."""
SEQUENCES = {
    "squeezed": lambda x: x.squeeze(-1),
    "flattened": lambda x: x.flatten(2),
    "indexed": lambda x: x[:, :, 0],
    "viewed": lambda x: x.view(*x.shape[:2], 1),
    "from a vector": lambda x: x.flatten(1).unsqueeze(-1),
}
"""From ``[N, C, 1, 1]`` to ``[N, C, 1]``."""
IMAGES = {
    "unsqueezed": lambda x: x.flatten(1).unsqueeze(-1).unsqueeze(-1),
    "viewed": lambda x: x.flatten(1).view(-1, 70, 1, 1),
    "added": lambda x: x + x.squeeze(3).unsqueeze(2),
}
"""From ``[N, C, 1, 1]`` to itself."""


def behind_vectors():
    return {
        "nothing": nn.Identity(),
        "linear": nn.Linear(70, 3),
        "norm": nn.BatchNorm1d(70),
        "binary": surge.BinaryLinear(70, 9, bias=False, method="reactnet"),
        "norm and binary": nn.Sequential(
            nn.BatchNorm1d(70), surge.BinaryLinear(70, 9, bias=False, method="bnn")
        ),
    }


def behind_sequences():
    return {
        "nothing": nn.Identity(),
        "linear": nn.Linear(1, 3),
        "norm": nn.BatchNorm1d(70),
        "convolution": nn.Conv1d(70, 3, 1),
        "binary": surge.BinaryConv1d(70, 9, 3, padding=1, bias=False, method="reactnet"),
        "slopes": nn.Sequential(surge.RPReLU(70), nn.Flatten()),
    }


def behind_images():
    return {
        "nothing": nn.Identity(),
        "norm": nn.BatchNorm2d(70),
        "convolution": nn.Conv2d(70, 3, 1),
        "binary": surge.BinaryConv2d(70, 9, 3, padding=1, bias=False, method="reactnet"),
    }


CASES = [
    (functions, name, behind, kind)
    for functions, behind in [
        (VECTORS, behind_vectors),
        (SEQUENCES, behind_sequences),
        (IMAGES, behind_images),
    ]
    for name in functions
    for kind in behind()
    if name == next(iter(functions)) or kind in ("nothing", "binary")
]


def fits(engine, path, model, x):
    """Compare with torch, the shape included."""
    model = settle(model, x)
    actual, wanted = packed_output(engine, model, x, path), expected(model, x)
    assert actual.shape == wanted.shape
    assert_close(actual, wanted)


@pytest.mark.parametrize(
    ("functions", "name", "behind", "kind"),
    CASES,
    ids=[f"{behind.__name__}-{name}-{kind}" for _, name, behind, kind in CASES],
)
def test_dimensions_of_one_are_only_names(engine, tmp_path, functions, name, behind, kind):
    torch.manual_seed(0)
    before = [nn.Conv2d(4, 70, 3), nn.BatchNorm2d(70), nn.AdaptiveAvgPool2d(1)]
    model = nn.Sequential(*before, Applies(functions[name]), behind()[kind])
    fits(engine, tmp_path / "m.surge", model, torch.randn(5, 4, 6, 6))


@pytest.mark.parametrize("method", ["bnn", "reactnet", "xnor"])
def test_signs_are_read_by_another_name(engine, tmp_path, method):
    """Thresholds between two binary layers do not mind."""
    torch.manual_seed(0)
    model = nn.Sequential(
        surge.BinaryConv2d(4, 70, 6, bias=False, method=method),
        nn.BatchNorm2d(70),
        Applies(lambda x: x.squeeze(3)),
        surge.BinaryConv1d(70, 66, 3, padding=1, bias=False, method=method),
        nn.BatchNorm1d(66),
        Applies(lambda x: x[:, :, 0]),
        surge.BinaryLinear(66, 5, bias=False, method=method),
    )
    fits(engine, tmp_path / "m.surge", model, torch.randn(5, 4, 6, 6))


@pytest.mark.parametrize(
    "function",
    [
        lambda x: x[:, :, -1],
        lambda x: x[:, 2],
        lambda x: x.mean(2, keepdim=True).squeeze(2),
        lambda x: F.adaptive_avg_pool1d(x, 1)[..., 0],
        lambda x: x.unsqueeze(2),
        lambda x: F.max_pool2d(x.unsqueeze(2), (1, 3)).squeeze(2),
    ],
)
@pytest.mark.parametrize("before", [nn.Identity(), nn.Conv1d(4, 4, 3)])
def test_sequences_lose_and_gain_dimensions(engine, tmp_path, before, function):
    torch.manual_seed(0)
    model = nn.Sequential(before, Applies(function))
    fits(engine, tmp_path / "m.surge", model, torch.randn(5, 4, 9))


class Joined(nn.Module):
    """A network input beside what a convolution makes of it."""

    def __init__(self, *, input_first, axis):
        super().__init__()
        self.conv = nn.Conv1d(4, 4, 3, padding=1)
        self.input_first, self.axis = input_first, axis

    def forward(self, x):
        parts = [x, self.conv(x)]
        return torch.cat(parts if self.input_first else parts[::-1], self.axis)


PER_CHANNEL, PER_PLACE = torch.linspace(-1, 1, 4)[:, None], torch.linspace(-1, 1, 9)


@pytest.mark.parametrize(
    "layers",
    [
        [surge.RSign(4), nn.Conv1d(4, 3, 3)],
        [surge.RPReLU(4)],
        [surge.RPReLU(4), surge.BinaryConv1d(4, 66, 3, bias=False, method="reactnet")],
        [surge.BinaryConv1d(4, 66, 3, padding=1, bias=False, method="reactnet"), surge.RPReLU(66)],
        [Applies(lambda x: PER_CHANNEL * x), nn.BatchNorm1d(4)],
        [Applies(lambda x: PER_CHANNEL - x), nn.Linear(9, 3)],
        [Applies(lambda x: (x + PER_CHANNEL) / (2 + PER_PLACE)), nn.Conv1d(4, 3, 3)],
        [nn.Conv1d(4, 4, 3, padding=1), Applies(lambda x: x * PER_PLACE), nn.Linear(9, 3)],
        [Applies(lambda x: x.transpose(1, 2))],
        [Applies(lambda x: x.transpose(1, 2)), nn.Conv1d(9, 3, 3)],
        [nn.Conv1d(4, 5, 3), Applies(lambda x: x.permute(0, 2, 1)), nn.Linear(5, 3)],
        [
            nn.Conv1d(4, 5, 3),
            Applies(lambda x: x.transpose(1, 2).transpose(1, 2) + x),
            nn.BatchNorm1d(5),
        ],
        [nn.Conv1d(4, 5, 3), Applies(lambda x: x.transpose(1, 2)), nn.Flatten(), nn.Linear(35, 3)],
        [Applies(lambda x: x + x.transpose(2, 1).relu().transpose(-1, -2)), nn.LayerNorm(9)],
        [
            Applies(lambda x: x.transpose(1, 2)),
            surge.BinaryLinear(4, 66, bias=False, method="reactnet"),
            Applies(lambda x: x.transpose(1, 2)),
            surge.BinaryConv1d(66, 5, 3, bias=False, method="reactnet"),
        ],
        [Joined(input_first=True, axis=1), nn.BatchNorm1d(8)],
        [Joined(input_first=False, axis=1), nn.Conv1d(8, 3, 3)],
        [Joined(input_first=True, axis=2), nn.Linear(18, 3)],
        [Joined(input_first=False, axis=-1), nn.BatchNorm1d(4), nn.Flatten(), nn.Linear(72, 3)],
        [
            Joined(input_first=True, axis=1),
            surge.BinaryConv1d(8, 66, 3, bias=False, method="reactnet"),
        ],
    ],
)
def test_network_input_may_be_a_sequence_or_turned(engine, tmp_path, layers):
    torch.manual_seed(0)
    fits(engine, tmp_path / "m.surge", nn.Sequential(*layers), torch.randn(5, 4, 9))
