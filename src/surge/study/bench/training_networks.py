"""The networks whose training steps are timed."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from torch import nn

from surge.errors import ConfigError, did_you_mean
from surge.models import (
    bireal_resnet18,
    reactnet_resnet18,
    resnet18_cifar,
    resnet20,
    vgg_small,
)


@dataclass(frozen=True)
class Network:
    """A network to train: how it is built and what it is fed with."""

    build: Callable[..., nn.Module]
    method: str
    shape: tuple[int, ...]
    batch: int
    classes: int
    adam: bool = False
    skip: tuple[str, ...] = ()
    channels: int | None = None
    """Of the first stage, where ``build`` takes another number of them as ``width=``."""


def _bert() -> nn.Module:
    from transformers import BertConfig, BertForSequenceClassification

    from surge.models.bert import BertClassifier

    config = BertConfig(
        num_labels=2, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0, hidden_act="relu"
    )
    return BertClassifier(BertForSequenceClassification(config))


NETWORKS = {
    "resnet20": Network(resnet20, "recu", (3, 32, 32), 256, 10, channels=16),
    "resnet18-cifar": Network(resnet18_cifar, "recu", (3, 32, 32), 256, 10),
    "vggsmall": Network(vgg_small, "recu", (3, 32, 32), 256, 10),
    "resnet18-224": Network(
        bireal_resnet18, "bireal", (3, 224, 224), 256, 1000, adam=True, skip=("*downsample*",)
    ),
    "reactnet-224": Network(
        reactnet_resnet18, "reactnet", (3, 224, 224), 256, 1000, adam=True, skip=("*downsample*",)
    ),
    "rbonn-224": Network(
        reactnet_resnet18, "rbonn", (3, 224, 224), 256, 1000, adam=True, skip=("*downsample*",)
    ),
    "bert-base": Network(_bert, "bit", (3, 128), 32, 2, adam=True),
}
"""By name; the batches are those of the paper's recipes."""


def check_width(name: str, times: int) -> None:
    """Raise a :class:`ConfigError` unless a network can have that many times its channels."""
    if times < 1 or (times > 1 and NETWORKS[name].channels is None):
        able = ", ".join(other for other, found in NETWORKS.items() if found.channels is not None)
        raise ConfigError(
            f"{name} cannot be built with --width {times}: that is a factor for the channels, at "
            f"least 1, and above 1 for {able} alone."
        )


def built(name: str, times: int = 1) -> nn.Module:
    """Build a network with that many times its own channels."""
    check_width(name, times)
    network = NETWORKS[name]
    if times == 1 or network.channels is None:
        return network.build()
    return network.build(width=times * network.channels)


def known(name: str, table: Mapping[str, Any], what: str) -> Any:
    """Return an entry of a table; a wrong name is an error that says the near miss."""
    if name not in table:
        raise ConfigError(
            f'There is no {what} "{name}".{did_you_mean(name, table)} Known: {", ".join(table)}.'
        )
    return table[name]
