"""SURGE: binary neural networks, trained with a gradient that is repaired, shipped in 1 bit."""

from surge.compensation import Compensation, compensate_, strip_
from surge.convert import BinarizeReport, binarize_
from surge.layers import (
    BinaryConv1d,
    BinaryConv2d,
    BinaryEmbedding,
    BinaryLinear,
    RPReLU,
    RSign,
)
from surge.layers.hooks import extra_loss, on_epoch, on_step
from surge.method import list_methods

__version__ = "0.1.0"

__all__ = [
    "BinarizeReport",
    "BinaryConv1d",
    "BinaryConv2d",
    "BinaryEmbedding",
    "BinaryLinear",
    "Compensation",
    "RPReLU",
    "RSign",
    "binarize_",
    "compensate_",
    "extra_loss",
    "list_methods",
    "on_epoch",
    "on_step",
    "strip_",
]
