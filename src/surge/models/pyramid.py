"""From a batch of images to five feature maps: a ResNet-18 and its feature pyramid."""

import math
from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from surge.data.batch import Batch, padded
from surge.errors import ConfigError
from surge.models.imagenet import WIDTHS, BiRealResNet
from surge.models.parts import check_option
from surge.models.plain_resnet import PlainResNet

STRIDES = (4, 8, 16, 32, 64)
"""Pixels of the image per pixel of each of the five maps."""

Body = BiRealResNet | PlainResNet


def pad_together(images: Sequence[Tensor] | Batch) -> Batch:
    """Return images ``[3, H, W]`` as one batch; one that is a batch already stays as it is.

    >>> from torch import ones
    >>> pad_together([ones(3, 40, 60), ones(3, 33, 64)]).tensors.shape
    torch.Size([2, 3, 64, 64])
    """
    if isinstance(images, Batch):
        return images
    if not images or any(image.dim() != 3 for image in images):
        shapes = ", ".join(str(tuple(image.shape)) for image in images) or "none"
        raise ConfigError(f"A detector takes a list of images [3, height, width]; got {shapes}.")
    height, width = (padded(max(image.shape[axis] for image in images)) for axis in (1, 2))
    batch = images[0].new_zeros(len(images), images[0].shape[0], height, width)
    for place, image in zip(batch, images, strict=True):
        place[:, : image.shape[1], : image.shape[2]].copy_(image)
    return Batch(batch, [(image.shape[1], image.shape[2]) for image in images])


def without_head(body: Body) -> Body:
    """Return a classifier whose pooling and last layer are gone; its names stay."""
    for name in ("pool", "avgpool", "flatten", "fc"):
        if hasattr(body, name):
            setattr(body, name, nn.Identity())
    return body


def parts_of(body: Body) -> tuple[list[nn.Module], list[nn.Module]]:
    """Return the modules of the stem, in order, and the four stages."""
    if isinstance(body, BiRealResNet):
        return [body.conv1, body.bn1, body.act1, body.maxpool], list(body.stages)
    layers = [body.get_submodule(f"layer{number}") for number in range(1, 5)]
    return [body.conv1, body.bn1, body.relu, body.maxpool], layers


class FeaturePyramid(nn.Module):
    """Four stage outputs to five maps of one width, coarse ones added to finer ones.

    ``m_i = f(lateral_i(x_i)) + upsampled m_(i+1)``, ``p_i = f(output_i(m_i))``; the fifth map is
    every second pixel of the fourth.

    Args:
        channels: width of the maps.
        lateral: side of the lateral kernels: 3 in 1-bit detectors, 1 in float ones.
        activation: ``prelu`` after every convolution, or ``none``.
    """

    def __init__(self, channels: int, *, lateral: int, activation: str) -> None:
        super().__init__()
        check_option("activation", activation, ("prelu", "none"))

        def after() -> nn.Module:
            return nn.PReLU(channels) if activation == "prelu" else nn.Identity()

        self.laterals = nn.ModuleList(
            nn.Conv2d(width, channels, lateral, padding=lateral // 2) for width in WIDTHS
        )
        self.lateral_acts = nn.ModuleList(after() for _ in WIDTHS)
        self.outputs = nn.ModuleList(nn.Conv2d(channels, channels, 3, padding=1) for _ in WIDTHS)
        self.output_acts = nn.ModuleList(after() for _ in WIDTHS)
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.xavier_uniform_(module.weight)
                assert module.bias is not None
                nn.init.zeros_(module.bias)

    def forward(self, stages: Sequence[Tensor]) -> dict[str, Tensor]:
        """Return the maps by name, ``"0"`` the finest."""
        merged: Tensor | None = None
        maps: list[Tensor] = []
        for level in reversed(range(len(stages))):
            lateral = self.lateral_acts[level](self.laterals[level](stages[level]))
            if merged is not None:
                lateral = lateral + F.interpolate(merged, size=lateral.shape[2:], mode="nearest")
            merged = lateral
            maps.insert(0, self.output_acts[level](self.outputs[level](merged)))
        maps.append(F.max_pool2d(maps[-1], kernel_size=1, stride=2))
        return {str(level): values for level, values in enumerate(maps)}


class PyramidBackbone(nn.Module):
    """A ResNet-18 without its head, ``body``, and the pyramid on its four stages, ``fpn``."""

    def __init__(self, body: Body, fpn: FeaturePyramid) -> None:
        super().__init__()
        self.body = without_head(body)
        self.fpn = fpn
        self.out_channels = fpn.outputs[0].out_channels

    def stages(self, images: Tensor) -> list[Tensor]:
        """Return the outputs of the four stages."""
        stem, stages = parts_of(self.body)
        for module in stem:
            images = module(images)
        outputs = []
        for stage in stages:
            images = stage(images)
            outputs.append(images)
        return outputs

    def forward(self, images: Tensor) -> dict[str, Tensor]:
        """Map ``[N, 3, H, W]``, sides multiples of 32, to the five maps."""
        maps: dict[str, Tensor] = self.fpn(self.stages(images))
        return maps


class JoinedStages(nn.Module):
    """The four stages of a body as one vector per image: a packed file has one output.

    ``parted`` undoes it, so that an engine can compute the stages and torch the rest.
    """

    def __init__(self, backbone: PyramidBackbone) -> None:
        super().__init__()
        self.backbone = backbone

    def forward(self, images: Tensor) -> Tensor:
        """Map ``[N, 3, H, W]`` to ``[N, numbers]``, the first stage first."""
        return torch.cat([stage.flatten(1) for stage in self.backbone.stages(images)], dim=1)

    @staticmethod
    def parted(vectors: Tensor, height: int, width: int) -> list[Tensor]:
        """Return the four stages that images of this size have."""
        shapes = [
            (channels, height // stride, width // stride)
            for channels, stride in zip(WIDTHS, STRIDES[:4], strict=True)
        ]
        pieces = torch.split(vectors, [math.prod(shape) for shape in shapes], dim=1)
        return [p.reshape(-1, *shape) for p, shape in zip(pieces, shapes, strict=True)]
