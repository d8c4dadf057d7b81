"""Data sets in their official formats, as tensors that live on the training device."""

from surge.data.augment import Augmentation, crop_flip, normalize
from surge.data.cifar10 import load_cifar10
from surge.data.digits import load_digits
from surge.data.download import download_cifar10
from surge.data.imageset import HALF, IMAGENET, ImageSet, Normalization
from surge.data.integrity import DamagedDataError
from surge.data.loader import ResidentLoader
from surge.data.plan import EpochPlan, epoch_plan
from surge.data.root import resolve_root
from surge.data.split import hold_out, stratified_split
from surge.data.voc import BoxSet, load_voc
from surge.data.voc_loader import BoxLoader
from surge.data.voc_metrics import average_precision

__all__ = [
    "HALF",
    "IMAGENET",
    "Augmentation",
    "BoxLoader",
    "BoxSet",
    "DamagedDataError",
    "EpochPlan",
    "ImageSet",
    "Normalization",
    "ResidentLoader",
    "average_precision",
    "crop_flip",
    "download_cifar10",
    "epoch_plan",
    "hold_out",
    "load_cifar10",
    "load_digits",
    "load_voc",
    "normalize",
    "resolve_root",
    "stratified_split",
]
