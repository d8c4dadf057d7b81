"""A float backbone with torchvision's names in the binary ResNet-18s: what fits is taken."""

import re
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from surge.errors import CheckpointMismatchError
from surge.models.imagenet import BiRealResNet
from surge.models.plain_resnet import PlainResNet

_BLOCK = re.compile(r"layer([1-4])\.(\d+)\.(conv|bn)([12])\.(.+)")
_SHORTCUT = re.compile(r"layer([1-4])\.0\.downsample\.([01])\.(.+)")


@dataclass(frozen=True)
class BackboneReport:
    """Which tensors of a backbone were taken; print it."""

    taken: tuple[tuple[str, str], ...]
    """Pairs of (name in the file, name in the model)."""
    left: tuple[str, ...]
    """Names in the file that have no place in the model, or another shape there."""
    kept: tuple[str, ...]
    """Names of the model that stay as they were."""

    def __str__(self) -> str:
        """Say it in three lines."""

        def shown(names: tuple[str, ...]) -> str:
            more = f" and {len(names) - 4} more" if len(names) > 4 else ""
            return f"{len(names)}" + (f" ({', '.join(names[:4])}{more})" if names else "")

        return (
            f"taken from the backbone: {len(self.taken)}\n"
            f"left in the file: {shown(self.left)}\n"
            f"kept as they were: {shown(self.kept)}"
        )


def place_of(name: str, model: BiRealResNet | PlainResNet) -> str:
    """Return where a tensor of torchvision's ResNet-18 stands in a network of this package.

    >>> from surge.models.imagenet import bireal_resnet18
    >>> place_of("layer2.1.conv1.weight", bireal_resnet18(classes=2))
    'stages.1.2.conv.weight'
    """
    if isinstance(model, PlainResNet):
        return name
    if found := _BLOCK.fullmatch(name):
        stage, block, kind, place, rest = found.groups()
        return f"stages.{int(stage) - 1}.{2 * int(block) + int(place) - 1}.{kind}.{rest}"
    if found := _SHORTCUT.fullmatch(name):
        stage, place, rest = found.groups()
        path = model.get_submodule(f"stages.{int(stage) - 1}.0.downsample")
        pooled = isinstance(next(iter(path.children()), None), nn.AvgPool2d)
        return f"stages.{int(stage) - 1}.0.downsample.{int(place) + pooled}.{rest}"
    return name


@torch.no_grad()
def load_backbone_(
    model: BiRealResNet | PlainResNet, state: Mapping[str, Tensor]
) -> BackboneReport:
    """Copy a float ResNet-18 with torchvision's names into a network of this package, in place.

    Where a block has one convolution, the two of a float block become two blocks. A tensor is
    taken where its name has a place and its shape is the same; a head for another number of
    classes is left.

    Raises:
        CheckpointMismatchError: not one block convolution fits, so this is no ResNet-18.
    """
    own = model.state_dict()
    places = {name: place_of(name, model) for name in state}
    taken = {n: p for n, p in places.items() if p in own and own[p].shape == state[n].shape}
    if not any(".conv" in place for place in taken.values()):
        raise CheckpointMismatchError(
            "load_backbone_: no convolution fits. Expected a ResNet-18 with torchvision's names, "
            f'such as "layer1.0.conv1.weight"; got {", ".join(list(state)[:3]) or "nothing"}.'
        )
    for name, place in taken.items():
        own[place].copy_(state[name])
    return BackboneReport(
        tuple(taken.items()),
        tuple(name for name in state if name not in taken),
        tuple(name for name in own if name not in set(taken.values())),
    )
