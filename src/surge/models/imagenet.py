"""ResNet-18 for images of 224 pixels in the binary literature's form, as a plain float model."""

from torch import Tensor, nn

from surge.models.parts import activation_layer, check_classes, conv3x3, init_kaiming_

WIDTHS = (64, 128, 256, 512)
"""Channels of the four stages, of four convolutions each."""


class OneConvBlock(nn.Module):
    """One 3x3 convolution with its own shortcut: ``y = f(bn(conv(x)) + s(x))``.

    Where the resolution halves the shortcut is average pooling, a 1x1 convolution and BatchNorm;
    ``skip=("*downsample*",)`` keeps that one float.
    """

    def __init__(self, inputs: int, outputs: int, stride: int, activation: str) -> None:
        super().__init__()
        self.conv = conv3x3(inputs, outputs, stride)
        self.bn = nn.BatchNorm2d(outputs)
        self.act = activation_layer(activation)
        self.downsample: nn.Module = nn.Identity()
        if stride != 1 or inputs != outputs:
            self.downsample = nn.Sequential(
                nn.AvgPool2d(stride),
                nn.Conv2d(inputs, outputs, 1, bias=False),
                nn.BatchNorm2d(outputs),
            )

    def forward(self, x: Tensor) -> Tensor:
        """Run the block."""
        y: Tensor = self.act(self.bn(self.conv(x)) + self.downsample(x))
        return y


class BiRealResNet(nn.Module):
    """A 7x7 stem, max pooling, four stages of :class:`OneConvBlock`, pooling, a linear layer."""

    def __init__(self, depth: int, classes: int, activation: str) -> None:
        super().__init__()
        check_classes(classes)
        self.conv1 = nn.Conv2d(3, WIDTHS[0], 7, stride=2, padding=3, bias=False)
        self.bn1 = nn.BatchNorm2d(WIDTHS[0])
        self.act1 = activation_layer("relu" if activation == "relu" else "none")
        self.maxpool = nn.MaxPool2d(3, stride=2, padding=1)
        stages: list[nn.Module] = []
        channels = WIDTHS[0]
        for stage, width in enumerate(WIDTHS):
            blocks: list[nn.Module] = []
            for index in range(depth):
                stride = 2 if stage > 0 and index == 0 else 1
                blocks.append(OneConvBlock(channels, width, stride, activation))
                channels = width
            stages.append(nn.Sequential(*blocks))
        self.stages = nn.Sequential(*stages)
        self.pool = nn.AdaptiveAvgPool2d(1)
        self.flatten = nn.Flatten()
        self.fc = nn.Linear(channels, classes)
        init_kaiming_(self)

    def forward(self, x: Tensor) -> Tensor:
        """Map images ``[N, 3, 224, 224]`` (any size from 32 on) to logits ``[N, classes]``."""
        x = self.stages(self.maxpool(self.act1(self.bn1(self.conv1(x)))))
        logits: Tensor = self.fc(self.flatten(self.pool(x)))
        return logits


def bireal_resnet18(classes: int = 1000, *, activation: str = "none") -> BiRealResNet:
    """Build ResNet-18 as Bi-Real Net has it: a shortcut around every one of its 16 convolutions.

    10,985,472 weights in the 16 block convolutions. Nothing follows a block but the next sign;
    ``activation="relu"`` without ``binarize_`` is the float reference.
    """
    return BiRealResNet(4, classes, activation)
