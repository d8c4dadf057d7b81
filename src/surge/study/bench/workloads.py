"""The networks that ``surge bench infer`` knows by name, each with its float twin.

Weights are random: speed does not depend on them. BatchNorms get the statistics of random inputs,
so that signs are as mixed as in a trained network.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from surge.convert import binarize_
from surge.errors import ConfigError, did_you_mean
from surge.layers import BinaryConv2d, BinaryLinear
from surge.models import bireal_resnet18, resnet18_cifar, resnet20, vgg_small

CHAIN = 8
"""Layers in a row that a single layer is measured with, so that both ends of the network, where
numbers come in and go out, do not count as the layer."""


Build = Callable[[], tuple[nn.Module, nn.Module]]
"""Makes a binary network and its float twin."""


@dataclass(frozen=True)
class Workload:
    """A binary network, the float network that does the same job, and one input."""

    name: str
    binary: nn.Module
    floating: nn.Module
    example: Tensor
    layers: int = 1
    """Equal layers in a row; times are those of one."""
    about: str = ""


@dataclass(frozen=True)
class Network:
    """What a name stands for: how to build both forms, and the sizes of one input."""

    build: Build
    shape: tuple[int, ...]
    about: str
    sizes: tuple[int, ...] = ()
    """Image sizes of the sweep; empty where the size is fixed."""
    layers: int = 1


def _pair(builder: Callable[..., nn.Module], method: str) -> Build:
    def build() -> tuple[nn.Module, nn.Module]:
        binary = builder()
        binarize_(binary, method, skip=_shortcuts(binary))
        return binary, builder(activation="relu")

    return build


def _shortcuts(model: nn.Module) -> tuple[str, ...]:
    weighted = any(
        "downsample" in name and isinstance(module, nn.Conv2d)
        for name, module in model.named_modules()
    )
    return ("*downsample*",) if weighted else ()


def _convolutions(channels: int) -> Build:
    def build() -> tuple[nn.Module, nn.Module]:
        binary: list[nn.Module] = []
        floating: list[nn.Module] = []
        for _ in range(CHAIN):
            conv = BinaryConv2d(channels, channels, 3, padding=1, bias=False, method="bireal")
            binary += [conv, nn.BatchNorm2d(channels)]
            real = nn.Conv2d(channels, channels, 3, padding=1, bias=False)
            floating += [real, nn.BatchNorm2d(channels), nn.ReLU()]
        return nn.Sequential(*binary), nn.Sequential(*floating)

    return build


def _linears(narrow: int, wide: int) -> Build:
    def build() -> tuple[nn.Module, nn.Module]:
        binary: list[nn.Module] = []
        floating: list[nn.Module] = []
        for index in range(CHAIN):
            sizes = (narrow, wide) if index % 2 == 0 else (wide, narrow)
            binary.append(BinaryLinear(*sizes, bias=True, method="bireal"))
            floating += [nn.Linear(*sizes), nn.ReLU()]
        return nn.Sequential(*binary), nn.Sequential(*floating)

    return build


def _single(channels: int, pixels: int) -> Network:
    about = f"one 3x3 convolution, {channels} channels, {pixels}x{pixels} ({CHAIN} in a row)"
    return Network(_convolutions(channels), (channels, pixels, pixels), about, layers=CHAIN)


NETWORKS: dict[str, Network] = {
    "resnet18-224": Network(
        _pair(bireal_resnet18, "bireal"),
        (3, 224, 224),
        "ResNet-18 as Bi-Real Net has it, 1000 classes",
        (96, 128, 160, 192, 224, 256),
    ),
    "resnet18-cifar": Network(
        _pair(resnet18_cifar, "recu"), (3, 32, 32), "ResNet-18 of CIFAR-10", (16, 24, 32, 48, 64)
    ),
    "resnet20": Network(
        _pair(resnet20, "recu"), (3, 32, 32), "ResNet-20 of CIFAR-10", (16, 24, 32, 48, 64)
    ),
    "vggsmall": Network(_pair(vgg_small, "recu"), (3, 32, 32), "VGG-Small of CIFAR-10"),
    "conv64": _single(64, 56),
    "conv128": _single(128, 28),
    "conv256": _single(256, 14),
    "conv512": _single(512, 7),
    "linear768x3072": Network(
        _linears(768, 3072),
        (128, 768),
        f"one linear layer of a transformer, 128 tokens ({CHAIN} in a row, up and down)",
        layers=CHAIN,
    ),
}


def workload(name: str, *, size: int | None = None) -> Workload:
    """Build a network by name, for images of ``size`` pixels if given.

    Raises:
        ConfigError: there is no such network, or its input has no size to choose.
    """
    if name not in NETWORKS:
        raise ConfigError(
            f'--network "{name}" is not known.{did_you_mean(name, NETWORKS)} '
            f"Known: {', '.join(NETWORKS)}."
        )
    network = NETWORKS[name]
    shape = network.shape
    if size is not None and size != shape[-1]:
        if not network.sizes:
            raise ConfigError(f"--size {size}: {name} takes inputs of {shape} only.")
        if size < network.sizes[0]:
            raise ConfigError(f"--size {size} is below {network.sizes[0]}, the least for {name}.")
        shape = (shape[0], size, size)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        binary, floating = network.build()
        example = torch.randn(1, *shape)
        for model in (binary, floating):
            settle_(model, shape)
    return Workload(name, binary, floating, example, network.layers, network.about)


def settle_(model: nn.Module, shape: tuple[int, ...]) -> None:
    """Give BatchNorms the statistics of random inputs, then switch to evaluation."""
    norms = [m for m in model.modules() if isinstance(m, nn.BatchNorm1d | nn.BatchNorm2d)]
    for norm in norms:
        norm.momentum = None
    model.train()
    if norms:
        with torch.no_grad():
            model(torch.randn(4, *shape))
    model.eval()


def with_batch(work: Workload, batch: int) -> Workload:
    """Return the same workload with an input of ``batch`` samples."""
    if batch < 1:
        raise ConfigError(f"--batch {batch} must be at least 1.")
    generator = torch.Generator().manual_seed(1)
    shape = (batch, *work.example.shape[1:])
    return replace(work, example=torch.randn(shape, generator=generator))
