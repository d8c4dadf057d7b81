"""A small network for 8x8 digits: trains in seconds on one CPU core."""

from collections import OrderedDict

from torch import Tensor, nn

from surge.models.parts import (
    activation_layer,
    check_classes,
    check_width,
    conv3x3,
    init_kaiming_,
)


class CnnDigits(nn.Module):
    """Three 3x3 convolutions (the last two become binary), global pooling, one linear layer.

    Units are ordered as in VGG-Small: convolution, max pooling (unit 2), BatchNorm, activation.
    """

    def __init__(self, classes: int, width: int, activation: str) -> None:
        super().__init__()
        check_classes(classes)
        check_width(width)
        layers: OrderedDict[str, nn.Module] = OrderedDict()
        channels = 1
        for unit, outputs in enumerate((width, width, 2 * width), start=1):
            layers[f"conv{unit}"] = conv3x3(channels, outputs)
            if unit == 2:
                layers["pool2"] = nn.MaxPool2d(2)
            layers[f"bn{unit}"] = nn.BatchNorm2d(outputs)
            layers[f"act{unit}"] = activation_layer(activation)
            channels = outputs
        self.features = nn.Sequential(layers)
        self.pool = nn.AdaptiveAvgPool2d(1)
        self.flatten = nn.Flatten()
        self.fc = nn.Linear(channels, classes)
        init_kaiming_(self)

    def forward(self, x: Tensor) -> Tensor:
        """Map images ``[N, 1, 8, 8]`` to logits ``[N, classes]``."""
        logits: Tensor = self.fc(self.flatten(self.pool(self.features(x))))
        return logits


def cnn_digits(classes: int = 10, *, width: int = 32, activation: str = "hardtanh") -> CnnDigits:
    """Build the digits network: 27,648 weights in the two convolutions that become binary."""
    return CnnDigits(classes, width, activation)
