"""One small network per operator: images, vectors and rows of tokens."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import surge
from tests.export.packing import assert_close, expected, packed_output, settle
from tests.export.test_pack_errors import Applies
from tests.nets import binarized

VECTOR = torch.linspace(-1, 1, 4)[:, None, None]
FUNCTIONS = {
    "relu6": lambda x: F.relu6(4 * x),
    "leaky relu": lambda x: F.leaky_relu(x, 0.3),
    "add a number": lambda x: x + 0.5,
    "subtract from a vector": lambda x: VECTOR - x,
    "subtract a vector": lambda x: x - VECTOR,
    "multiply by a vector": lambda x: VECTOR * x,
    "divide by a number": lambda x: x / 3,
    "multiply by numbers made on the way": lambda x: x * torch.zeros(1).add_(2) * torch.tensor(1.5),
    "product of two": lambda x: x * x.abs(),
    "global mean": lambda x: x.mean((2, 3)),
    "global mean, kept": lambda x: x.mean((2, 3), keepdim=True),
    "mean over channels": lambda x: x.mean(1, keepdim=True),
    "softmax of a sum with every channel": lambda x: (x + x.mean((2, 3), keepdim=True)).softmax(1),
    "softmax of a sum with one channel": lambda x: _softmax(F.max_pool2d(x, (6, 1))),
    "reshape": lambda x: x.reshape(x.shape[0], -1),
    "all of it": lambda x: x[:, :],
    "rows as one": lambda x: x.flatten(2),
    "rows as one and again as several": lambda x: x.flatten(2).relu().unflatten(2, (3, 12)),
    "a single column, dropped": lambda x: F.max_pool2d(x, (1, 6)).squeeze(3),
    "channels last, normed, mixed, and first again": lambda x: _channels_last(x),
    "channels last, flattened": lambda x: x.permute(0, 2, 3, 1).flatten(1),
    "channels last, rows as one": lambda x: x.permute(0, 2, 3, 1).reshape(x.shape[0], -1, 4),
    "channels last, averaged": lambda x: x.permute(0, 2, 3, 1).mean((1, 2)),
    "all but some": lambda x: x[:, :, 1:, 2:-1],
    "some channels": lambda x: x[:, 1:3],
    "channels in another order": lambda x: torch.cat(x.chunk(2, 1)[::-1], 1),
    "unequal parts": lambda x: x.split([3, 1], 1)[0] * x.split([3, 1], 1)[1],
    "mean of tokens": lambda x: x.flatten(2).transpose(1, 2).mean(1),
    "all but the first token": lambda x: x.flatten(2).transpose(1, 2)[:, 1:].mean(1),
    "size of every channel": lambda x: x / (x.norm(dim=(2, 3), keepdim=True) + 1),
    "norm of a sample": lambda x: F.group_norm(x, 1, VECTOR[:, 0, 0], eps=0.1),
    "sigmoid": torch.sigmoid,
    "silu": F.silu,
    "silu in place": lambda x: F.silu(x + 1, inplace=True),
    "hard sigmoid": lambda x: F.hardsigmoid(4 * x),
    "hard swish": lambda x: F.hardswish(4 * x),
    "gelu by tanh": lambda x: F.gelu(3 * x, approximate="tanh"),
    "gate of every channel": lambda x: x * x.mean((2, 3), keepdim=True).sigmoid(),
    "clamp on one side": lambda x: x.clamp(min=0.3) + x.clamp(max=0.1),
    "no pad": lambda x: F.pad(x, (0, 0, 0, 0, 1, 2)),
    "zeros around": lambda x: F.pad(x, (2, 2, 1, 1)),
    "zeros on one side": lambda x: F.pad(x, (0, 1, 2, 0)),
    "zeros before, less behind": lambda x: F.pad(x, (2, -3, -1, 1)),
    "zeros around, divided": lambda x: F.pad(x + 1, (1, 1)) / 4,
    "dropout": lambda x: F.dropout(x, training=False),
    "dropout-in-place": lambda x: F.dropout(x + 1, training=False, inplace=True),
    "dropout-of-channels-in-place": lambda x: F.dropout2d(x + 1, training=False, inplace=True),
    "average without the border": lambda x: F.avg_pool2d(x, 3, 2, 1, count_include_pad=False),
    "average with the border": lambda x: F.avg_pool2d(x, 3, 2, 1),
    "average of all, with a ceiling": lambda x: F.avg_pool2d(x, 9, ceil_mode=True),
    "average by a divisor": lambda x: F.avg_pool2d(x, 2, divisor_override=3),
    "adaptive average": lambda x: F.adaptive_avg_pool2d(x, 2),
    "divided average of one": lambda x: F.adaptive_avg_pool2d(x, 6) / 1.5,
    "average of one, divided and not": lambda x: (s := F.avg_pool2d(x, 1)) + s / 4,
    "average of one, read by another name": lambda x: (s := F.avg_pool2d(x, 1)) + s.detach() / 4,
    "average of one, divided by much": lambda x: F.avg_pool2d(x, 1) / 2.0**30 * 2.0**30,
    "average of one, doubled": lambda x: F.avg_pool2d(x, 1) / 0.5,
    "maximum with a border": lambda x: F.max_pool2d(x, 3, 2, 1),
    "harmless ceiling": lambda x: F.max_pool2d(x, 2, ceil_mode=True),
    "harmless ceiling of every second": lambda x: F.max_pool2d(x, 1, 2, ceil_mode=True),
    "harmless ceiling of an average": lambda x: F.avg_pool2d(x, 2, 3, 1, ceil_mode=True),
    "harmless ceiling of a few": lambda x: F.avg_pool2d(
        x, (1, 3), (2, 3), ceil_mode=True, count_include_pad=False
    ),
    "maximum over the edge": lambda x: F.max_pool2d(x, 4, 3, ceil_mode=True),
    "maximum over the edge with a border": lambda x: F.max_pool2d(x, 3, 2, 1, ceil_mode=True),
    "average over the edge": lambda x: F.avg_pool2d(x, 4, 3, ceil_mode=True),
    "average over the edge without the border": lambda x: F.avg_pool2d(
        x, 4, 3, 1, ceil_mode=True, count_include_pad=False
    ),
    "average over the edge by a divisor": lambda x: F.avg_pool2d(
        x, 4, 3, 1, ceil_mode=True, divisor_override=5
    ),
    "channels shuffled": lambda x: F.channel_shuffle(x, 2),
    "channels shuffled by hand": lambda x: (
        x.unflatten(1, (2, 2)).transpose(1, 2).contiguous().flatten(1, 2)
    ),
    "clamp with crossed ends": lambda x: x.clamp(1, -1),
    "clamp without an upper end": lambda x: x.clamp(0, float("inf")),
    "pool of the input": lambda x: F.max_pool2d(x, 2) + 1,
    "changed in place, read by its other names": lambda x: _in_place(2 * x),
}


MIXER = torch.linspace(-1, 1, 20).view(5, 4).sin()


def _channels_last(x):
    y = F.layer_norm(x.permute(0, 2, 3, 1), [4], VECTOR[:, 0, 0])
    return F.gelu(F.linear(y, MIXER)).permute(0, 3, 1, 2)


def _in_place(y):
    dropped = F.dropout(y, training=False)  # is y itself
    F.relu_(dropped)
    return y - 0.5 * dropped


def _softmax(y):
    return (y + y.mean(1, keepdim=True)).softmax(1)


@pytest.mark.parametrize("name", FUNCTIONS)
def test_operator_on_images_gives_torchs_output(engine, tmp_path, name):
    torch.manual_seed(0)
    model, x = Applies(FUNCTIONS[name]).eval(), torch.randn(3, 4, 6, 6)
    assert_close(packed_output(engine, model, x, tmp_path / "m.surge"), expected(model, x))


@pytest.mark.parametrize("layers", [(), (nn.Conv1d(1, 1, 3),)])
def test_added_dimension_is_one_of_the_output(engine, tmp_path, layers):
    torch.manual_seed(0)
    model, x = nn.Sequential(Applies(lambda x: x.unsqueeze(1)), *layers).eval(), torch.randn(3, 8)
    actual, wanted = packed_output(engine, model, x, tmp_path / "m.surge"), expected(model, x)
    assert actual.shape == wanted.shape
    assert_close(actual, wanted)


def test_same_padding_and_a_separate_sign_pack(engine, tmp_path):
    torch.manual_seed(0)
    conv = nn.Conv2d(4, 5, 3, padding="same", bias=False)
    model = nn.Sequential(surge.RSign(4), conv, nn.Hardtanh(), nn.Conv2d(5, 2, 1)).eval()
    x = torch.randn(3, 4, 6, 6)
    assert_close(packed_output(engine, model, x, tmp_path / "m.surge"), expected(model, x))


@pytest.mark.parametrize("method", ["bnn", "reactnet", "xnor"])
@pytest.mark.parametrize("norm", [nn.Identity, nn.BatchNorm2d])
def test_zeros_around_an_image_are_positive_signs(engine, tmp_path, method, norm):
    """Unlike a binary layer's own padding, which adds nothing."""
    torch.manual_seed(0)
    layers = [
        surge.BinaryConv2d(4, 66, 3, padding=1, bias=False, method=method),
        norm(66),
        nn.ZeroPad2d(2),
        surge.BinaryConv2d(66, 5, 3, padding=1, bias=False, method=method),
        nn.ZeroPad2d((0, 0, 1, 1)),
        nn.Conv2d(5, 3, 3),
    ]
    x = torch.randn(5, 4, 6, 6)
    model = settle(nn.Sequential(*layers), x)
    assert_close(packed_output(engine, model, x, tmp_path / "m.surge"), expected(model, x))


@pytest.mark.parametrize(
    "behind",
    [
        nn.LayerNorm(16),
        nn.Sequential(nn.LayerNorm(16), nn.Linear(16, 3)),
        surge.BinaryLinear(16, 8, bias=False, method="bnn"),
    ],
)
def test_scale_behind_a_map_stays_before_what_is_no_scale(engine, tmp_path, behind):
    """Behind XNOR's factor per row only a linear norm may take over the weight's scale."""
    torch.manual_seed(0)
    model = nn.Sequential(surge.BinaryLinear(16, 16, bias=False, method="xnor"), behind).eval()
    x = torch.randn(3, 16)
    with torch.no_grad():
        for module in model.modules():
            if isinstance(module, nn.LayerNorm):
                module.weight.uniform_(0.5, 2.0)
    assert_close(packed_output(engine, model, x, tmp_path / "m.surge"), expected(model, x))


def test_rows_of_tokens_keep_their_order(engine, tmp_path):
    torch.manual_seed(0)
    layers = [nn.Linear(6, 70), nn.Hardtanh(), nn.Linear(70, 9), nn.ReLU(), nn.Linear(9, 3)]
    model = binarized(nn.Sequential(*layers), "reactnet").eval()
    x = torch.randn(2, 5, 6)
    assert_close(packed_output(engine, model, x, tmp_path / "m.surge"), expected(model, x))
    with torch.no_grad():
        head = nn.Sequential(*model, nn.Flatten(), nn.Linear(15, 2)).eval()
    assert_close(packed_output(engine, head, x, tmp_path / "h.surge"), expected(head, x))


@pytest.mark.parametrize("behind", [nn.Identity, nn.MaxPool2d, nn.BatchNorm2d])
@pytest.mark.parametrize(
    "window", [{}, {"padding": 1}, {"padding": 2, "stride": 2}, {"padding": (2, 0), "dilation": 2}]
)
@pytest.mark.parametrize("method", [None, "bnn", "reactnet"])
@pytest.mark.parametrize("channels", [2, 16, 20, 48, 37])
def test_depthwise_convolutions_are_torchs(engine, tmp_path, channels, method, window, behind):
    """Filters with one channel each, which the kernels take side by side."""
    torch.manual_seed(0)
    options = {"kernel_size": 3, "groups": channels, "bias": method is None, **window}
    layers = [nn.Conv2d(3, channels, 1), nn.BatchNorm2d(channels)]
    if method is None:
        layers.append(nn.Conv2d(channels, channels, **options))
    else:
        layers.append(surge.BinaryConv2d(channels, channels, method=method, **options))
    layers.append(behind(2) if behind is nn.MaxPool2d else behind(channels))
    # Its signs are read, too.
    layers += [surge.BinaryConv2d(channels, 5, 1, bias=False, method="reactnet")]
    x = torch.randn(3, 3, 9, 8)
    model = settle(nn.Sequential(*layers), x)
    for part in (model[:4], model):
        assert_close(packed_output(engine, part, x, tmp_path / "m.surge"), expected(part, x))
