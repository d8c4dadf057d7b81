"""Ship a trained model: ``pack`` writes one file, ``load_packed`` runs it without torch."""

from surge.export.load import load_packed
from surge.export.packing import Packed, pack

__all__ = ["Packed", "load_packed", "pack"]
