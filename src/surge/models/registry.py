"""Architectures by name. A new one is its file and one entry of ``_BUILDERS``."""

import inspect
from collections.abc import Callable

from torch import nn

from surge.errors import ConfigError, did_you_mean
from surge.models.digits import cnn_digits
from surge.models.imagenet import bireal_resnet18, reactnet_resnet18, recu_resnet18
from surge.models.plain_resnet import resnet18, resnet34
from surge.models.resnet import resnet18_cifar, resnet20
from surge.models.vgg import vgg_small

_BUILDERS: dict[str, Callable[..., nn.Module]] = {
    "bireal_resnet18": bireal_resnet18,
    "cnn_digits": cnn_digits,
    "reactnet_resnet18": reactnet_resnet18,
    "recu_resnet18": recu_resnet18,
    "resnet18": resnet18,
    "resnet18_cifar": resnet18_cifar,
    "resnet20": resnet20,
    "resnet34": resnet34,
    "vgg_small": vgg_small,
}


def list_models() -> tuple[str, ...]:
    """Return the names :func:`build_model` accepts, sorted.

    >>> list_models()[:3]
    ('bireal_resnet18', 'cnn_digits', 'reactnet_resnet18')
    """
    return tuple(sorted(_BUILDERS))


def build_model(name: str, **options: object) -> nn.Module:
    """Build a float model by name; ``options`` are those of its function.

    >>> build_model("resnet20", classes=100).fc.out_features
    100
    """
    if name not in _BUILDERS:
        raise ConfigError(
            f"There is no model {name!r}.{did_you_mean(str(name), _BUILDERS)} "
            f"Known models: {', '.join(list_models())}."
        )
    builder = _BUILDERS[name]
    accepted = inspect.signature(builder).parameters
    for option in options:
        if option not in accepted:
            raise ConfigError(
                f"Model {name!r} has no option {option!r}.{did_you_mean(option, accepted)} "
                f"Its options: {', '.join(accepted)}."
            )
    return builder(**options)
