"""Run packed binary networks: NumPy in, NumPy out, no torch.

>>> import surge_runtime
>>> model = surge_runtime.load("model.surge")  # doctest: +SKIP
>>> model.run(batch).argmax(axis=1)  # doctest: +SKIP
"""

from surge_runtime.library import PackedFileError, tiers
from surge_runtime.model import Model, load

__version__ = "0.1.0"
__all__ = ["Model", "PackedFileError", "load", "tiers"]
