"""ResNet-18 for 224-pixel images, as Bi-Real Net has it: the network the engine is measured with."""

import torch
from torch import Tensor, nn

import surge

WIDTHS = (64, 128, 256, 512)


class Unit(nn.Module):
    """A 3x3 convolution with a shortcut around it."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.conv = nn.Conv2d(inputs, outputs, 3, stride=stride, padding=1, bias=False)
        self.norm = nn.BatchNorm2d(outputs)
        self.act = nn.PReLU(outputs)
        self.downsample: nn.Module = nn.Identity()
        if stride > 1:
            shrink, widen = nn.AvgPool2d(2), nn.Conv2d(inputs, outputs, 1, bias=False)
            self.downsample = nn.Sequential(shrink, widen, nn.BatchNorm2d(outputs))

    def forward(self, x: Tensor) -> Tensor:
        """Run the unit."""
        y: Tensor = self.act(self.norm(self.conv(x)) + self.downsample(x))
        return y


def resnet18(classes: int = 1000) -> nn.Sequential:
    """Build the float network: 7x7 stem, 16 units, linear layer."""
    stem = nn.Conv2d(3, 64, 7, stride=2, padding=3, bias=False)
    layers: list[nn.Module] = [stem, nn.BatchNorm2d(64), nn.MaxPool2d(3, 2, 1)]
    channels = 64
    for width in WIDTHS:
        for index in range(4):
            stride = 2 if index == 0 and width > 64 else 1
            layers.append(Unit(channels, width, stride))
            channels = width
    layers += [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(512, classes)]
    return nn.Sequential(*layers)


def binary_resnet18(method: str = "bireal", *, seed: int = 0) -> nn.Sequential:
    """Return the network with binary 3x3 convolutions and the statistics of random images."""
    torch.manual_seed(seed)
    model = resnet18()
    surge.binarize_(model, method, skip=("*downsample*",))
    model.train()
    with torch.no_grad():
        model(torch.randn(4, 3, 224, 224))
    return model.eval()
