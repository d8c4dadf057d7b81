"""Plain float architectures; ``surge.binarize_`` turns them into 1-bit networks."""

from surge.models.digits import CnnDigits, cnn_digits
from surge.models.imagenet import BiRealResNet, bireal_resnet18
from surge.models.registry import build_model, list_models
from surge.models.resnet import CifarResNet, resnet18_cifar, resnet20
from surge.models.vgg import VggSmall, vgg_small

__all__ = [
    "BiRealResNet",
    "CifarResNet",
    "CnnDigits",
    "VggSmall",
    "bireal_resnet18",
    "build_model",
    "cnn_digits",
    "list_models",
    "resnet18_cifar",
    "resnet20",
    "vgg_small",
]
