"""Plain float architectures; ``surge.binarize_`` turns them into 1-bit networks."""

from surge.models.backbone import BackboneReport, load_backbone_
from surge.models.detector import (
    Detector,
    detector_scope,
    float_detector,
    load_body_,
    reactnet_detector,
)
from surge.models.detector_parts import DetectorSettings
from surge.models.digits import CnnDigits, cnn_digits
from surge.models.imagenet import (
    BiRealResNet,
    bireal_resnet18,
    reactnet_resnet18,
    recu_resnet18,
)
from surge.models.plain_resnet import PlainResNet, resnet18, resnet34
from surge.models.registry import build_model, list_models
from surge.models.resnet import CifarResNet, resnet18_cifar, resnet20
from surge.models.vgg import VggSmall, vgg_small

__all__ = [
    "BackboneReport",
    "BiRealResNet",
    "CifarResNet",
    "CnnDigits",
    "Detector",
    "DetectorSettings",
    "PlainResNet",
    "VggSmall",
    "bireal_resnet18",
    "build_model",
    "cnn_digits",
    "detector_scope",
    "float_detector",
    "list_models",
    "load_backbone_",
    "load_body_",
    "reactnet_detector",
    "reactnet_resnet18",
    "recu_resnet18",
    "resnet18",
    "resnet18_cifar",
    "resnet20",
    "resnet34",
    "vgg_small",
]
