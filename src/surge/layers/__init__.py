"""Torch layers that hold a binarisation method."""

from surge.layers.activations import RPReLU, RSign
from surge.layers.base import BinaryLayer
from surge.layers.conv import BinaryConv1d, BinaryConv2d
from surge.layers.linear import BinaryEmbedding, BinaryLinear, BinaryTransposedLinear
from surge.layers.stem import StemConv2d

__all__ = [
    "BinaryConv1d",
    "BinaryConv2d",
    "BinaryEmbedding",
    "BinaryLayer",
    "BinaryLinear",
    "BinaryTransposedLinear",
    "RPReLU",
    "RSign",
    "StemConv2d",
]
