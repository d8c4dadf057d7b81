"""Pieces the architectures share: activations, parameter-free shortcuts, checks of options.

Nothing here works in place: a binary layer saves its input for the backward pass, and a
later in-place clamp would overwrite exactly that tensor.
"""

import torch.nn.functional as F
from torch import Tensor, nn

from surge.errors import ConfigError, did_you_mean
from surge.layers import StemConv2d

ACTIVATIONS: dict[str, type[nn.Module]] = {
    "hardtanh": nn.Hardtanh,
    "relu": nn.ReLU,
    "none": nn.Identity,
}
"""``hardtanh`` for binary networks, ``relu`` for float references, ``none`` as Bi-Real Net."""

SHORTCUTS = ("pool", "slice", "conv")
"""How a shortcut halves the resolution: see :func:`shortcut_path`."""


def check_option(option: str, value: str, accepted: tuple[str, ...]) -> None:
    """Raise a :class:`ConfigError` that names the near miss unless ``value`` is accepted."""
    if value not in accepted:
        names = ", ".join(f'"{name}"' for name in accepted)
        hint = did_you_mean(str(value), accepted)
        raise ConfigError(f"{option}={value!r} is not known.{hint} Accepted: {names}.")


def check_classes(classes: int) -> None:
    """Raise a :class:`ConfigError` unless the head has at least one output."""
    if classes < 1:
        raise ConfigError(f"classes={classes} is not accepted: a classifier needs at least 1.")


def check_width(width: int) -> None:
    """Raise a :class:`ConfigError` unless the first layer has at least one channel."""
    if width < 1:
        raise ConfigError(f"width={width} is not accepted: it must be at least 1.")


def activation_layer(name: str) -> nn.Module:
    """Return a new activation module, never an in-place one."""
    check_option("activation", name, tuple(ACTIVATIONS))
    return ACTIVATIONS[name]()


def conv3x3(inputs: int, outputs: int, stride: int = 1) -> nn.Conv2d:
    """Return a 3x3 convolution that keeps the resolution (at stride 1) and has no bias."""
    return nn.Conv2d(inputs, outputs, 3, stride=stride, padding=1, bias=False)


def stem3x3(outputs: int) -> nn.Conv2d:
    """Return the same for the images themselves, as the first layer of a network."""
    return StemConv2d(3, outputs, 3, padding=1, bias=False)


class PadChannels(nn.Module):
    """Append zero channels, the same number on both sides.

    A doubled width gets a quarter of the new width on each side, as in the CIFAR networks
    of ReCU and IR-Net.
    """

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        if outputs < inputs:
            raise ConfigError(f"PadChannels cannot shrink {inputs} channels to {outputs}.")
        self.before = (outputs - inputs) // 2
        self.after = outputs - inputs - self.before

    def forward(self, x: Tensor) -> Tensor:
        """Pad ``[N, C, H, W]`` along C."""
        return F.pad(x, (0, 0, 0, 0, self.before, self.after))

    def extra_repr(self) -> str:
        """Show the two channel counts."""
        return f"before={self.before}, after={self.after}"


class Subsample(nn.Module):
    """Keep every ``stride``-th row and column (IR-Net's parameter-free shortcut)."""

    def __init__(self, stride: int) -> None:
        super().__init__()
        self.stride = stride

    def forward(self, x: Tensor) -> Tensor:
        """Slice ``[N, C, H, W]`` along H and W."""
        return x[:, :, :: self.stride, :: self.stride]

    def extra_repr(self) -> str:
        """Show the stride."""
        return f"stride={self.stride}"


def shortcut_path(kind: str, inputs: int, outputs: int, stride: int) -> nn.Module:
    """Return what carries the input of a residual block past its convolutions.

    Where neither the width nor the resolution changes this is the identity. Otherwise:

    ======= ====================================== =====================================
    kind    path                                   used by
    ======= ====================================== =====================================
    pool    average pooling, zero channels added   ReCU, and every row of our tables
    slice   every second pixel, zero channels      IR-Net's ResNet-20
    conv    1x1 convolution with stride, BatchNorm IR-Net's ResNet-18 (float), RBNN's
                                                   (the same path made binary)
    ======= ====================================== =====================================
    """
    check_option("shortcut", kind, SHORTCUTS)
    if stride == 1 and inputs == outputs:
        return nn.Identity()
    if kind == "conv":
        conv = nn.Conv2d(inputs, outputs, 1, stride=stride, bias=False)
        return nn.Sequential(conv, nn.BatchNorm2d(outputs))
    shrink = nn.AvgPool2d(stride) if kind == "pool" else Subsample(stride)
    return nn.Sequential(shrink, PadChannels(inputs, outputs))


def init_kaiming_(model: nn.Module) -> None:
    """Draw every convolution from N(0, sqrt(2 / fan_in)); other layers keep torch's default."""
    for module in model.modules():
        if isinstance(module, nn.Conv2d):
            nn.init.kaiming_normal_(module.weight, mode="fan_in", nonlinearity="relu")
