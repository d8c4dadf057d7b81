"""Ship a trained model: ``pack`` writes one file, ``load_packed`` runs it without torch.

``to_onnx`` and ``to_openvino`` write for engines that others make. Names are imported on first
use: running a packed file loads neither torch nor an exporter.
"""

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from surge.export.load import load_packed
    from surge.export.onnx import to_onnx
    from surge.export.openvino import to_openvino
    from surge.export.packing import Packed, pack

__all__ = ["Packed", "load_packed", "pack", "to_onnx", "to_openvino"]

_HOMES = {
    "Packed": "packing",
    "load_packed": "load",
    "pack": "packing",
    "to_onnx": "onnx",
    "to_openvino": "openvino",
}

if not TYPE_CHECKING:  # a visible __getattr__ would make every misspelt name type-check

    def __getattr__(name: str) -> object:
        """Import a public name on first use, and keep it."""
        if name not in _HOMES:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        value = getattr(importlib.import_module(f"{__name__}.{_HOMES[name]}"), name)
        globals()[name] = value
        return value
