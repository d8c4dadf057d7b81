"""ResNet-18 for images of 224 pixels in the binary literature's forms, as plain float models.

All have a shortcut around every one of their 16 block convolutions, and those are what becomes
binary; ``skip=("*downsample*",)`` keeps the 1x1 convolutions of shortcuts float.

==================== ================ =================== ==================== ==================
                     after the stem   after a block       shortcut             before the head
==================== ================ =================== ==================== ==================
bireal_resnet18      nothing          nothing             pooling, 1x1         nothing
reactnet_resnet18    nothing          RPReLU              pooling, 1x1         nothing
recu_resnet18        Hardtanh         Hardtanh            1x1 with stride      BatchNorm1d
==================== ================ =================== ==================== ==================
"""

import torch
from torch import Tensor, nn

from surge.layers.activations import RPReLU
from surge.models.parts import activation_layer, check_classes, conv3x3, init_kaiming_

WIDTHS = (64, 128, 256, 512)
"""Channels of the four stages, of four convolutions each."""

QUIET = 1e-8
"""Where ReCU starts the factors of its BatchNorms: every block begins as its shortcut."""


class Move(nn.Module):
    """Add a learnable number to every channel: RSign's threshold, for methods without one."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.shift = nn.Parameter(torch.zeros(channels))

    def forward(self, x: Tensor) -> Tensor:
        """Shift ``[N, C, H, W]``."""
        return x + self.shift.view(-1, 1, 1).to(x.dtype)


def after_block(activation: str, channels: int) -> nn.Module:
    """Return what follows the sum of a block."""
    return RPReLU(channels) if activation == "rprelu" else activation_layer(activation)


class OneConvBlock(nn.Module):
    """One 3x3 convolution with its own shortcut: ``y = f(bn(conv(x)) + s(x))``.

    Where the resolution halves the shortcut is a 1x1 convolution and BatchNorm, behind average
    pooling or with a stride of its own; ``skip=("*downsample*",)`` keeps that one float.
    """

    def __init__(
        self,
        inputs: int,
        outputs: int,
        stride: int,
        activation: str,
        *,
        pooled: bool = True,
        moved: bool = False,
    ) -> None:
        super().__init__()
        self.move: nn.Module = Move(inputs) if moved else nn.Identity()
        self.conv = conv3x3(inputs, outputs, stride)
        self.bn = nn.BatchNorm2d(outputs)
        self.act = after_block(activation, outputs)
        self.downsample: nn.Module = nn.Identity()
        if stride != 1 or inputs != outputs:
            pool: list[nn.Module] = [nn.AvgPool2d(stride)] if pooled else []
            step = 1 if pooled else stride
            self.downsample = nn.Sequential(
                *pool,
                nn.Conv2d(inputs, outputs, 1, stride=step, bias=False),
                nn.BatchNorm2d(outputs),
            )

    def forward(self, x: Tensor) -> Tensor:
        """Run the block."""
        y: Tensor = self.act(self.bn(self.conv(self.move(x))) + self.downsample(x))
        return y


class BiRealResNet(nn.Module):
    """A 7x7 stem, max pooling, four stages of :class:`OneConvBlock`, pooling, a linear layer.

    Args:
        depth: convolutions in each stage.
        classes: outputs of the last layer.
        activation: after a block: ``none``, ``hardtanh``, ``relu`` or ``rprelu``.
        stem_activation: after the first BatchNorm.
        pooled: average pooling before the 1x1 convolution of a shortcut, instead of a stride.
        head_norm: a BatchNorm between pooling and the linear layer.
        moved: a learnable threshold before every block's convolution.
    """

    def __init__(
        self,
        depth: int,
        classes: int,
        activation: str,
        *,
        stem_activation: str = "none",
        pooled: bool = True,
        head_norm: bool = False,
        moved: bool = False,
    ) -> None:
        super().__init__()
        check_classes(classes)
        self.conv1 = nn.Conv2d(3, WIDTHS[0], 7, stride=2, padding=3, bias=False)
        self.bn1 = nn.BatchNorm2d(WIDTHS[0])
        self.act1 = activation_layer(stem_activation)
        self.maxpool = nn.MaxPool2d(3, stride=2, padding=1)
        stages: list[nn.Module] = []
        channels = WIDTHS[0]
        for stage, width in enumerate(WIDTHS):
            blocks: list[nn.Module] = []
            for index in range(depth):
                stride = 2 if stage > 0 and index == 0 else 1
                blocks.append(
                    OneConvBlock(channels, width, stride, activation, pooled=pooled, moved=moved)
                )
                channels = width
            stages.append(nn.Sequential(*blocks))
        self.stages = nn.Sequential(*stages)
        self.pool = nn.AdaptiveAvgPool2d(1)
        self.flatten = nn.Flatten()
        self.bn2: nn.Module = nn.BatchNorm1d(channels) if head_norm else nn.Identity()
        self.fc = nn.Linear(channels, classes)
        init_kaiming_(self)

    def forward(self, x: Tensor) -> Tensor:
        """Map images ``[N, 3, 224, 224]`` (any size from 32 on) to logits ``[N, classes]``."""
        x = self.stages(self.maxpool(self.act1(self.bn1(self.conv1(x)))))
        logits: Tensor = self.fc(self.bn2(self.flatten(self.pool(x))))
        return logits


def bireal_resnet18(classes: int = 1000, *, activation: str = "none") -> BiRealResNet:
    """Build ResNet-18 as Bi-Real Net has it: a shortcut around every one of its 16 convolutions.

    10,985,472 weights in the 16 block convolutions. Nothing follows a block but the next sign;
    ``activation="relu"`` without ``binarize_`` is the float reference.
    """
    stem = "relu" if activation == "relu" else "none"
    return BiRealResNet(4, classes, activation, stem_activation=stem)


def reactnet_resnet18(classes: int = 1000, *, moved: bool = False) -> BiRealResNet:
    """Build ResNet-18 as ReActNet has it: Bi-Real Net's with an RPReLU after every block.

    RSign's thresholds are part of the methods ``reactnet`` and ``rbonn``; ``moved`` puts them into
    the network for a method that has none. Either way they and the RPReLUs are 14,912 parameters.
    """
    return BiRealResNet(4, classes, "rprelu", moved=moved)


def recu_resnet18(classes: int = 1000) -> BiRealResNet:
    """Build ResNet-18 as ReCU has it on ImageNet, every BatchNorm2d starting near zero."""
    model = BiRealResNet(
        4, classes, "hardtanh", stem_activation="hardtanh", pooled=False, head_norm=True
    )
    for module in model.modules():
        if isinstance(module, nn.BatchNorm2d):
            nn.init.constant_(module.weight, QUIET)
    return model
