"""CIFAR-10's Python version, read without trusting it.

The official files are Python 2 pickles of a dictionary with an array and a list. A pickle can
name any function to call; ours may name what an array needs, replaced by inert stand-ins that
only write down their arguments: neither foreign code nor numpy's own unpickling ever runs.
"""

import pickle
from pathlib import Path
from typing import Any, NoReturn

import numpy as np

from surge.data.integrity import DamagedDataError

_PIXELS = 3 * 32 * 32

# What unpickling damaged or foreign bytes can raise, by experiment with cut and altered files.
_UNPICKLING_ERRORS = (
    pickle.UnpicklingError,
    ArithmeticError,
    AttributeError,
    EOFError,
    LookupError,
    MemoryError,
    TypeError,
    ValueError,
)


class _Stub:
    """Stands for an array or a type while a pickle is read: keeps arguments, does nothing.

    Having ``__setstate__`` matters: without it a pickle could set attributes, on the class too.
    """

    def __init__(self, *arguments: object) -> None:
        self.arguments = arguments
        self.state: object = None

    def __setstate__(self, state: object) -> None:
        self.state = state


_ALLOWED = {
    ("numpy.core.multiarray", "_reconstruct"): _Stub,
    ("numpy._core.multiarray", "_reconstruct"): _Stub,
    ("numpy", "ndarray"): _Stub,
    ("numpy", "dtype"): _Stub,
}


class _SafeUnpickler(pickle.Unpickler):
    """Builds dictionaries, lists, numbers, text and stand-ins; refuses every other name."""

    def find_class(self, module_name: str, global_name: str, /) -> Any:
        try:
            return _ALLOWED[module_name, global_name]
        except KeyError:
            name = f"{module_name}.{global_name}"
            raise pickle.UnpicklingError(f"it asks for {name}, which is not allowed") from None

    def persistent_load(self, pid: object) -> NoReturn:
        raise pickle.UnpicklingError("it refers to an object outside the file")


def read_pickled_records(path: Path) -> bytes:
    """Return a Python batch file as the records of the binary version: label, then pixels.

    Raises:
        DamagedDataError: it is not such a file, or names anything but a plain array.
    """
    with path.open("rb") as file:
        try:
            batch = _SafeUnpickler(file, encoding="bytes").load()
        except _UNPICKLING_ERRORS as error:
            raise DamagedDataError(
                f"{path} is not a CIFAR-10 batch: {str(error) or type(error).__name__}."
            ) from error
    if not isinstance(batch, dict):
        raise DamagedDataError(f"{path} holds a {type(batch).__name__}, expected a dictionary.")
    pixels = _pixels(batch.get(b"data", batch.get("data")), path)
    labels = _labels(batch.get(b"labels", batch.get("labels")), path)
    if len(labels) != len(pixels):
        raise DamagedDataError(f"{path} holds {len(pixels)} images but {len(labels)} labels.")
    return np.concatenate([labels[:, None], pixels], axis=1).tobytes()


def _pixels(array: object, path: Path) -> np.ndarray[Any, np.dtype[np.uint8]]:
    """Check the recorded state of the array and give its bytes a shape."""
    match getattr(array, "state", None):
        case (int(), (int(count), int(width)), _Stub(arguments=(kind, *_)), False | 0, bytes(raw)):
            plain = kind in (b"u1", "u1") and width == _PIXELS and len(raw) == count * width
            if plain:
                return np.frombuffer(raw, dtype=np.uint8).reshape(count, width)
    raise DamagedDataError(f'{path}: "data" is not an array of N x {_PIXELS} bytes.')


def _labels(values: object, path: Path) -> np.ndarray[Any, np.dtype[np.uint8]]:
    if not isinstance(values, list):
        raise DamagedDataError(f'{path}: "labels" is not a list.')
    for record, label in enumerate(values):
        if not isinstance(label, int) or not 0 <= label <= 9:
            raise DamagedDataError(f"{path}: record {record} has label {label!r}, expected 0 to 9.")
    return np.array(values, dtype=np.uint8)
