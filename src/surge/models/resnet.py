"""The two CIFAR residual networks of the binary literature, as plain float models.

They differ in more than depth: ResNet-20 has a shortcut around *every* convolution (as
Bi-Real Net), ResNet-18 one around every *pair* of convolutions. Both end in global average
pooling, a BatchNorm1d and one linear layer, and both follow the networks that ReCU trains
(Xu et al., ICCV 2021), on which the CIFAR-10 tables are based.

The first convolution (``conv1``) and the last layer (``fc``) are the first and the last
weighted modules, so ``binarize_`` keeps them float without being told.
"""

from collections.abc import Sequence

from torch import Tensor, nn

from surge.models.parts import (
    activation_layer,
    check_classes,
    check_width,
    conv3x3,
    init_kaiming_,
    shortcut_path,
    stem3x3,
)


class ResidualBlock(nn.Module):
    """Two 3x3 convolutions with BatchNorm; subclasses decide where the shortcuts go.

    ``downsample`` is the shortcut path: the identity where nothing changes. With
    ``shortcut="conv"`` it holds a weighted layer, which ``skip=("*downsample*",)`` keeps float.
    """

    def __init__(
        self, inputs: int, outputs: int, stride: int, *, shortcut: str, activation: str
    ) -> None:
        super().__init__()
        self.conv1 = conv3x3(inputs, outputs, stride)
        self.bn1 = nn.BatchNorm2d(outputs)
        self.act1 = activation_layer(activation)
        self.conv2 = conv3x3(outputs, outputs)
        self.bn2 = nn.BatchNorm2d(outputs)
        self.act2 = activation_layer(activation)
        self.downsample = shortcut_path(shortcut, inputs, outputs, stride)


class DoubleShortcutBlock(ResidualBlock):
    """A shortcut around each convolution: ``y = f(conv1(x) + s(x))``, ``z = f(conv2(y) + y)``."""

    def forward(self, x: Tensor) -> Tensor:
        """Run the block."""
        y = self.act1(self.bn1(self.conv1(x)) + self.downsample(x))
        z: Tensor = self.act2(self.bn2(self.conv2(y)) + y)
        return z


class SingleShortcutBlock(ResidualBlock):
    """One shortcut around both: ``y = f(conv1(x))``, ``z = f(conv2(y) + s(x))``."""

    def forward(self, x: Tensor) -> Tensor:
        """Run the block."""
        y = self.act1(self.bn1(self.conv1(x)))
        z: Tensor = self.act2(self.bn2(self.conv2(y)) + self.downsample(x))
        return z


class CifarResNet(nn.Module):
    """Stem, stages of residual blocks, pooled BatchNorm and a linear layer, for 32x32 images.

    Args:
        block: where the shortcuts go.
        widths: channels of each stage; every stage but the first halves the resolution.
        depth: blocks in each stage.
        classes: outputs of the last layer.
        shortcut: ``pool``, ``slice`` or ``conv``.
        activation: ``hardtanh``, ``relu`` or ``none``.
        stem_activation: the activation after the first BatchNorm.
    """

    def __init__(
        self,
        block: type[ResidualBlock],
        widths: Sequence[int],
        *,
        depth: int,
        classes: int,
        shortcut: str,
        activation: str,
        stem_activation: str,
    ) -> None:
        super().__init__()
        check_classes(classes)
        self.conv1 = stem3x3(widths[0])
        self.bn1 = nn.BatchNorm2d(widths[0])
        self.act1 = activation_layer(stem_activation)
        stages: list[nn.Module] = []
        channels = widths[0]
        for stage, width in enumerate(widths):
            blocks: list[nn.Module] = []
            for index in range(depth):
                stride = 2 if stage > 0 and index == 0 else 1
                blocks.append(
                    block(channels, width, stride, shortcut=shortcut, activation=activation)
                )
                channels = width
            stages.append(nn.Sequential(*blocks))
        self.stages = nn.Sequential(*stages)
        self.pool = nn.AdaptiveAvgPool2d(1)
        self.flatten = nn.Flatten()
        self.bn2 = nn.BatchNorm1d(channels)
        self.fc = nn.Linear(channels, classes)
        init_kaiming_(self)

    def forward(self, x: Tensor) -> Tensor:
        """Map images ``[N, 3, 32, 32]`` to logits ``[N, classes]``."""
        x = self.stages(self.act1(self.bn1(self.conv1(x))))
        logits: Tensor = self.fc(self.bn2(self.flatten(self.pool(x))))
        return logits


def resnet20(
    classes: int = 10, *, width: int = 16, shortcut: str = "pool", activation: str = "hardtanh"
) -> CifarResNet:
    """Build ResNet-20 with a shortcut around every convolution, widths 16, 32, 64.

    267,264 weights in the 18 block convolutions. ``width`` is that of the first stage; the second
    and third have two and four times as many channels. ``activation="relu"`` without
    ``binarize_`` is the float reference.
    """
    check_width(width)
    return CifarResNet(
        DoubleShortcutBlock,
        (width, 2 * width, 4 * width),
        depth=3,
        classes=classes,
        shortcut=shortcut,
        activation=activation,
        stem_activation=activation,
    )


def resnet18_cifar(
    classes: int = 10, *, shortcut: str = "pool", activation: str = "hardtanh"
) -> CifarResNet:
    """Build ResNet-18 for 32x32 images, one shortcut per block, widths 64, 128, 256, 512.

    10,985,472 weights in the 16 block convolutions. As in ReCU nothing follows the BatchNorm
    of the stem, so the first binary layer sees an unbounded input; only the float reference
    (``activation="relu"``) has its ReLU there, as every float ResNet does.
    """
    return CifarResNet(
        SingleShortcutBlock,
        (64, 128, 256, 512),
        depth=2,
        classes=classes,
        shortcut=shortcut,
        activation=activation,
        stem_activation="relu" if activation == "relu" else "none",
    )
