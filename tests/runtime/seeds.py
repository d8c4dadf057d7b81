"""Small files that together use every operator of the format."""

import torch
import torch.nn.functional as F
from torch import nn

import surge
from surge.export import pack
from tests.export.packing import settle
from tests.nets import CENTRED, binarized, cnn

PIXELS = {"mean": [0.4, 0.5], "std": [0.2, 0.3], "maximum": 255}


class Residual(nn.Module):
    def __init__(self, inner):
        super().__init__()
        self.inner = inner

    def forward(self, x):
        return torch.cat([self.inner(x) + x, x], dim=1)[:, :, ::2, ::2]


def images(method, **options):
    torch.manual_seed(0)
    layers = [nn.Conv2d(2, 4, 3, padding=1, bias=False), nn.BatchNorm2d(4), nn.MaxPool2d(3, 2, 1)]
    layers += [Residual(nn.Conv2d(4, 4, 3, padding=1, bias=False)), surge.RPReLU(8)]
    layers += [nn.Conv2d(8, 12, 3, groups=2, padding=1, bias=False), nn.MaxPool2d(2)]
    layers += [nn.BatchNorm2d(12), nn.Hardtanh(), nn.Conv2d(12, 5, 1, bias=False)]
    layers += [nn.BatchNorm2d(5), nn.ReLU(), nn.AvgPool2d(1), nn.Flatten(), nn.Linear(5, 3)]
    return settle(binarized(nn.Sequential(*layers), method, **options), torch.randn(4, 2, 8, 8))


def sequences(method):
    torch.manual_seed(0)
    layers = [nn.Conv1d(3, 4, 3), nn.BatchNorm1d(4), nn.Conv1d(4, 5, 3, padding=1), nn.PReLU()]
    layers += [nn.Flatten(), nn.Linear(20, 6), nn.BatchNorm1d(6), nn.Linear(6, 2)]
    return settle(binarized(nn.Sequential(*layers), method), torch.randn(4, 3, 6))


class Tokens(nn.Module):
    """Patches of an image, a first token, an attention of real numbers, gates."""

    def __init__(self):
        super().__init__()
        self.sharp = nn.Conv2d(2, 2, 3, padding=1, groups=2)
        self.patches = nn.Conv2d(2, 12, 4, 4)
        self.deep = nn.Conv2d(12, 12, 3, padding=1, groups=12, bias=False)
        self.first = nn.Parameter(torch.randn(1, 1, 12))
        self.inner = nn.MultiheadAttention(12, 2, batch_first=True)
        self.middle, self.out = nn.Linear(12, 20), nn.Linear(20, 3)

    def forward(self, x):
        x = F.pad(x, (1, -1, -2, 2)) * x.mean((2, 3), keepdim=True).sigmoid()
        x = F.max_pool2d(F.channel_shuffle(x, 2), 3, 1, 1, ceil_mode=True)
        x = self.patches(self.sharp(x))
        x = (x + self.deep(x)).flatten(2).transpose(1, 2)
        x = torch.cat([self.first.expand(len(x), -1, -1), x], dim=1)
        x = x + self.inner(x, x, x, need_weights=False)[0]
        return self.out(F.hardtanh(self.middle(x[:, 1:]).mean(1)))


def patches(method):
    torch.manual_seed(0)
    return binarized(Tokens(), method).eval()


def write_seeds(folder):
    """Write the files and return their paths."""
    picture, row = torch.zeros(1, 2, 8, 8), torch.zeros(1, 3, 6)
    made = {
        "reactnet": (images("reactnet"), picture, {"rest": "int8", "preprocessing": PIXELS}),
        "rbnn": (images("rbnn"), picture, {"rest": "fp16"}),
        "xnor": (images("xnor"), picture, {}),
        "few-bits": (images("dorefa", weight_bits=3, input_bits=2), picture, {}),
        **{method: (images(method), picture, {}) for method in CENTRED},
        "patches": (patches("reactnet"), picture, {"rest": "int8"}),
        "sequences": (sequences("tbn"), row, {}),
        "cnn": (cnn("bnn").eval(), torch.zeros(1, 2, 6, 6), {}),
    }
    paths = []
    for name, (model, example, options) in made.items():
        paths.append(folder / f"{name}.surge")
        pack(model, example, paths[-1], **options)
    return paths
