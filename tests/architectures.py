"""Float architectures that tests need and the package does not ship."""

import torch
from torch import nn


def norm_conv(inputs, outputs, kernel, stride=1, padding=0):
    conv = nn.Conv2d(inputs, outputs, kernel, stride=stride, padding=padding, bias=False)
    return conv, nn.BatchNorm2d(outputs)


class BasicBlock(nn.Module):
    """Two 3x3 convolutions and a shortcut, with torchvision's names and order."""

    def __init__(self, inputs, outputs, stride, activation):
        super().__init__()
        self.conv1, self.bn1 = norm_conv(inputs, outputs, 3, stride, 1)
        self.relu = activation()
        self.conv2, self.bn2 = norm_conv(outputs, outputs, 3, 1, 1)
        changes = stride > 1 or inputs != outputs
        self.downsample = nn.Sequential(*norm_conv(inputs, outputs, 1, stride)) if changes else None

    def forward(self, x):
        y = self.bn2(self.conv2(self.relu(self.bn1(self.conv1(x)))))
        y += x if self.downsample is None else self.downsample(x)
        return self.relu(y)


class ResNet(nn.Module):
    """A ResNet of basic blocks for 224 px images, as torchvision writes it."""

    def __init__(self, depths, widths=(64, 128, 256, 512), classes=1000, activation=nn.ReLU):
        super().__init__()
        self.conv1, self.bn1 = norm_conv(3, widths[0], 7, 2, 3)
        self.relu = activation()
        self.maxpool = nn.MaxPool2d(3, stride=2, padding=1)
        inputs = widths[0]
        for stage, (depth, width) in enumerate(zip(depths, widths, strict=True)):
            blocks = []
            for index in range(depth):
                stride = 2 if stage > 0 and index == 0 else 1
                blocks.append(BasicBlock(inputs, width, stride, activation))
                inputs = width
            self.add_module(f"layer{stage + 1}", nn.Sequential(*blocks))
        self.avgpool = nn.AdaptiveAvgPool2d(1)
        self.fc = nn.Linear(inputs, classes)

    def forward(self, x):
        x = self.maxpool(self.relu(self.bn1(self.conv1(x))))
        x = self.layer4(self.layer3(self.layer2(self.layer1(x))))
        return self.fc(torch.flatten(self.avgpool(x), 1))


def resnet18(**options):
    """ResNet-18 with its 11,689,512 parameters; build it on the meta device where size suffices."""
    return ResNet((2, 2, 2, 2), **options)


def small_resnet18(**options):
    """The same layers and names, narrow enough to run in a moment."""
    return ResNet((2, 2, 2, 2), widths=(4, 8, 8, 16), classes=5, **options)
