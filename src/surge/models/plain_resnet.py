"""Plain float ResNet-18 and ResNet-34: references and teachers.

Modules are named as in torchvision, so that a ``state_dict`` from there loads as it is.
"""

from collections.abc import Sequence

from torch import Tensor, nn

from surge.models.parts import check_classes, conv3x3

WIDTHS = (64, 128, 256, 512)


class BasicBlock(nn.Module):
    """Two 3x3 convolutions and one shortcut: ``relu(bn2(conv2(relu(bn1(conv1(x))))) + s(x))``."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.conv1 = conv3x3(inputs, outputs, stride)
        self.bn1 = nn.BatchNorm2d(outputs)
        self.relu = nn.ReLU()
        self.conv2 = conv3x3(outputs, outputs)
        self.bn2 = nn.BatchNorm2d(outputs)
        self.downsample: nn.Module | None = None
        if stride != 1 or inputs != outputs:
            self.downsample = nn.Sequential(
                nn.Conv2d(inputs, outputs, 1, stride=stride, bias=False),
                nn.BatchNorm2d(outputs),
            )

    def forward(self, x: Tensor) -> Tensor:
        """Run the block."""
        past = x if self.downsample is None else self.downsample(x)
        y = self.relu(self.bn1(self.conv1(x)))
        out: Tensor = self.relu(self.bn2(self.conv2(y)) + past)
        return out


class PlainResNet(nn.Module):
    """A 7x7 stem, max pooling, four layers of :class:`BasicBlock`, pooling, a linear layer."""

    def __init__(self, depths: Sequence[int], classes: int) -> None:
        super().__init__()
        check_classes(classes)
        self.conv1 = nn.Conv2d(3, WIDTHS[0], 7, stride=2, padding=3, bias=False)
        self.bn1 = nn.BatchNorm2d(WIDTHS[0])
        self.relu = nn.ReLU()
        self.maxpool = nn.MaxPool2d(3, stride=2, padding=1)
        channels = WIDTHS[0]
        for number, (depth, width) in enumerate(zip(depths, WIDTHS, strict=True), start=1):
            blocks: list[nn.Module] = []
            for index in range(depth):
                stride = 2 if number > 1 and index == 0 else 1
                blocks.append(BasicBlock(channels, width, stride))
                channels = width
            setattr(self, f"layer{number}", nn.Sequential(*blocks))
        self.avgpool = nn.AdaptiveAvgPool2d(1)
        self.flatten = nn.Flatten()
        self.fc = nn.Linear(channels, classes)
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")

    def forward(self, x: Tensor) -> Tensor:
        """Map images ``[N, 3, 224, 224]`` (any size from 32 on) to logits ``[N, classes]``."""
        x = self.maxpool(self.relu(self.bn1(self.conv1(x))))
        for number in range(1, len(WIDTHS) + 1):
            x = self.get_submodule(f"layer{number}")(x)
        logits: Tensor = self.fc(self.flatten(self.avgpool(x)))
        return logits


def resnet18(classes: int = 1000) -> PlainResNet:
    """Build the float ResNet-18: 11,689,512 parameters with 1000 classes."""
    return PlainResNet((2, 2, 2, 2), classes)


def resnet34(classes: int = 1000) -> PlainResNet:
    """Build the float ResNet-34: 21,797,672 parameters with 1000 classes."""
    return PlainResNet((3, 4, 6, 3), classes)
