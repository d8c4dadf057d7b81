"""Ship a trained model: ``pack`` writes one file, ``load_packed`` runs it without torch.

``to_onnx`` and ``to_openvino`` write for engines that others make.
"""

from surge.export.load import load_packed
from surge.export.onnx import to_onnx
from surge.export.openvino import to_openvino
from surge.export.packing import Packed, pack

__all__ = ["Packed", "load_packed", "pack", "to_onnx", "to_openvino"]
