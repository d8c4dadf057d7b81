"""The native library: where it is, and what its functions look like."""

import ctypes
import os
from functools import cache
from pathlib import Path

ABI_VERSION = 1
ERROR_BYTES = 1024
NAMES = ("libsurge_runtime.so", "libsurge_runtime.dylib", "surge_runtime.dll")


class PackedFileError(ValueError):
    """A file cannot be loaded or run; the message says why."""


def _find() -> Path:
    """Return the library beside this file, or the one that SURGE_RUNTIME_LIBRARY names."""
    named = os.environ.get("SURGE_RUNTIME_LIBRARY")
    folder = Path(__file__).parent
    candidates = [Path(named)] if named else [folder / name for name in NAMES]
    for candidate in candidates:
        if candidate.is_file():
            return candidate
    raise ImportError(
        f"surge_runtime has no native library ({', '.join(map(str, candidates))}); install the "
        "package with `pip install surge-runtime`, or set SURGE_RUNTIME_LIBRARY to a built one."
    )


@cache
def library() -> ctypes.CDLL:
    """Load the library and declare its functions, once."""
    lib = ctypes.CDLL(str(_find()))
    text, size, model = ctypes.c_char_p, ctypes.c_size_t, ctypes.c_void_p
    numbers, floats = ctypes.POINTER(ctypes.c_int64), ctypes.c_void_p
    error = (ctypes.c_char_p, ctypes.c_size_t)
    signatures = {
        "surge_abi_version": (ctypes.c_int, ()),
        "surge_tiers": (text, ()),
        "surge_load_file": (model, (text, *error)),
        "surge_load_memory": (model, (ctypes.c_char_p, size, *error)),
        "surge_free": (None, (model,)),
        "surge_input_shape": (ctypes.c_int, (model, numbers, ctypes.c_int)),
        "surge_output_shape": (ctypes.c_int, (model, numbers, ctypes.c_int)),
        "surge_metadata": (text, (model, text)),
        "surge_workspace_bytes": (size, (model,)),
        "surge_run": (ctypes.c_int, (model, floats, ctypes.c_int64, floats, *error)),
        "surge_step_count": (ctypes.c_int, (model,)),
        "surge_step_name": (text, (model, ctypes.c_int)),
        "surge_step_kind": (text, (model, ctypes.c_int)),
        "surge_profile": (
            ctypes.c_int,
            (model, floats, ctypes.c_int64, floats, ctypes.POINTER(ctypes.c_double), *error),
        ),
        "surge_set_threads": (ctypes.c_int, (model, ctypes.c_int, *error)),
        "surge_set_tier": (ctypes.c_int, (model, text, *error)),
        "surge_tier": (text, (model,)),
    }
    for name, (result, arguments) in signatures.items():
        function = getattr(lib, name)
        function.restype, function.argtypes = result, arguments
    if lib.surge_abi_version() != ABI_VERSION:
        raise ImportError(
            f"the native library has ABI version {lib.surge_abi_version()}, this package needs "
            f"{ABI_VERSION}."
        )
    return lib


def tiers() -> tuple[str, ...]:
    """Return the kernel tiers this machine can run, best first."""
    names: bytes = library().surge_tiers()
    return tuple(names.decode().split(","))
