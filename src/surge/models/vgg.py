"""VGG-Small, the shortcut-free CIFAR network of the binary literature."""

import math
from collections import OrderedDict

from torch import Tensor, nn

from surge.models.parts import activation_layer, check_classes, conv3x3, stem3x3

WIDTHS = (128, 128, 256, 256, 512, 512)
"""Channels of the six convolutions; every second one is followed by max pooling."""


class VggSmall(nn.Module):
    """Six 3x3 convolutions and one linear layer, for 32x32 images.

    A unit is convolution, max pooling (units 2, 4 and 6), BatchNorm, activation, in that
    order: pooling looks at the raw sums, so after binarisation it compares integers.
    """

    def __init__(self, classes: int, activation: str) -> None:
        super().__init__()
        check_classes(classes)
        layers: OrderedDict[str, nn.Module] = OrderedDict()
        channels = 3
        for unit, width in enumerate(WIDTHS, start=1):
            layers[f"conv{unit}"] = stem3x3(width) if unit == 1 else conv3x3(channels, width)
            if unit % 2 == 0:
                layers[f"pool{unit}"] = nn.MaxPool2d(2)
            layers[f"bn{unit}"] = nn.BatchNorm2d(width)
            layers[f"act{unit}"] = activation_layer(activation)
            channels = width
        self.features = nn.Sequential(layers)
        self.flatten = nn.Flatten()
        self.fc = nn.Linear(channels * 4 * 4, classes)
        self._init_weights()

    def _init_weights(self) -> None:
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                fan_out = module.kernel_size[0] * module.kernel_size[1] * module.out_channels
                nn.init.normal_(module.weight, 0.0, math.sqrt(2.0 / fan_out))
        nn.init.normal_(self.fc.weight, 0.0, 0.01)
        nn.init.zeros_(self.fc.bias)

    def forward(self, x: Tensor) -> Tensor:
        """Map images ``[N, 3, 32, 32]`` to logits ``[N, classes]``."""
        logits: Tensor = self.fc(self.flatten(self.features(x)))
        return logits


def vgg_small(classes: int = 10, *, activation: str = "hardtanh") -> VggSmall:
    """Build VGG-Small: 4,571,136 weights in the five convolutions that become binary.

    ``activation="relu"`` without ``binarize_`` is the float reference.
    """
    return VggSmall(classes, activation)
