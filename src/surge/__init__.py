"""SURGE: binary neural networks, trained with a gradient that is repaired, shipped in 1 bit.

Public names are imported on first use: ``import surge`` alone does not load torch, so the
command line answers at once.
"""

import importlib
import sys
import types
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from surge.compensation import Compensation, compensate_, strip_
    from surge.convert import BinarizeReport, binarize_
    from surge.export import Packed, load_packed, pack, to_onnx, to_openvino
    from surge.layers import (
        BinaryConv1d,
        BinaryConv2d,
        BinaryEmbedding,
        BinaryLinear,
        RPReLU,
        RSign,
    )
    from surge.layers.elastic import initialize_
    from surge.layers.hooks import extra_loss, on_epoch, on_step
    from surge.method import list_methods
    from surge.pretrained import list_pretrained, load_pretrained
    from surge.summary import Summary, summary
    from surge.train.norms import recalibrate_norms

__version__ = "0.1.0"

__all__ = [
    "BinarizeReport",
    "BinaryConv1d",
    "BinaryConv2d",
    "BinaryEmbedding",
    "BinaryLinear",
    "Compensation",
    "Packed",
    "RPReLU",
    "RSign",
    "Summary",
    "binarize_",
    "compensate_",
    "extra_loss",
    "initialize_",
    "list_methods",
    "list_pretrained",
    "load_packed",
    "load_pretrained",
    "on_epoch",
    "on_step",
    "pack",
    "recalibrate_norms",
    "strip_",
    "summary",
    "to_onnx",
    "to_openvino",
]

_CONTENTS = {
    "surge.compensation": ("Compensation", "compensate_", "strip_"),
    "surge.convert": ("BinarizeReport", "binarize_"),
    "surge.export": ("Packed", "load_packed", "pack", "to_onnx", "to_openvino"),
    "surge.layers": (
        "BinaryConv1d",
        "BinaryConv2d",
        "BinaryEmbedding",
        "BinaryLinear",
        "RPReLU",
        "RSign",
    ),
    "surge.layers.elastic": ("initialize_",),
    "surge.layers.hooks": ("extra_loss", "on_epoch", "on_step"),
    "surge.method": ("list_methods",),
    "surge.pretrained": ("list_pretrained", "load_pretrained"),
    "surge.summary": ("Summary", "summary"),
    "surge.train.norms": ("recalibrate_norms",),
}
_HOMES = {name: module for module, names in _CONTENTS.items() for name in names}


class _Package(types.ModuleType):
    """The package itself, in which ``summary`` is the function and never its module.

    The import system binds every submodule to its package under its own name, after running it.
    For ``surge.summary`` that would replace the function, depending on who imported what first.
    """

    @property
    def summary(self) -> Any:
        """The function :func:`surge.summary.summary`."""
        return importlib.import_module("surge.summary").summary

    @summary.setter
    def summary(self, module: object) -> None:
        """Ignore the import system; the module stays in ``sys.modules``."""


sys.modules[__name__].__class__ = _Package

if not TYPE_CHECKING:  # a visible __getattr__ would make every misspelt name type-check

    def __getattr__(name: str) -> object:
        """Import a public name on first use, and keep it."""
        if name not in _HOMES:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        value = getattr(importlib.import_module(_HOMES[name]), name)
        globals()[name] = value
        return value


def __dir__() -> list[str]:
    """List the public names, imported already or not."""
    return sorted({*globals(), *__all__})
