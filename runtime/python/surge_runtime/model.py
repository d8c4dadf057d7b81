"""A loaded network."""

import ctypes
import json
import os
import weakref
from typing import Any, TypeGuard

import numpy as np
from numpy.typing import ArrayLike, NDArray

from surge_runtime.library import ERROR_BYTES, PackedFileError, library

Array = NDArray[np.float32]
LARGEST = float(np.finfo(np.float32).max)


def load(
    source: str | os.PathLike[str] | bytes, *, threads: int = 1, tier: str | None = None
) -> "Model":
    """Load a packed file, or its content as bytes.

    Args:
        source: Path, or content.
        threads: How many threads one run may use.
        tier: Name of the kernels to use (see :func:`tiers`); by default the environment variable
            SURGE_RUNTIME_TIER decides, and without it the best tier is taken.
    """
    return Model(source, threads=threads, tier=tier)


class Model:
    """A network that runs; many threads may call :meth:`run` at the same time."""

    def __init__(
        self, source: str | os.PathLike[str] | bytes, *, threads: int = 1, tier: str | None = None
    ) -> None:
        error = ctypes.create_string_buffer(ERROR_BYTES)
        if isinstance(source, bytes):
            handle = library().surge_load_memory(source, len(source), error, ERROR_BYTES)
        else:
            path = os.fsencode(source)
            if not os.path.isfile(path):
                raise FileNotFoundError(2, "there is no packed file", os.fspath(source))
            handle = library().surge_load_file(path, error, ERROR_BYTES)
        if not handle:
            raise PackedFileError(error.value.decode(errors="replace"))
        self._handle = ctypes.c_void_p(handle)
        freed = weakref.finalize(self, library().surge_free, self._handle)
        freed.atexit = False  # a thread may still be running it then
        self.threads = threads
        if tier is not None:
            self.tier = tier

    @property
    def input_shape(self) -> tuple[int, ...]:
        """Sizes of one input, without the batch."""
        return self._dims(library().surge_input_shape)

    @property
    def output_shape(self) -> tuple[int, ...]:
        """Sizes of one output, without the batch."""
        return self._dims(library().surge_output_shape)

    @property
    def classes(self) -> list[str] | None:
        """Names of the outputs, if the file has them."""
        names = self._json("classes")
        if names is not None and not _are_names(names, self.output_shape[-1]):
            raise PackedFileError('damaged header: "classes" is not one name per output')
        return names

    @property
    def preprocessing(self) -> dict[str, Any] | None:
        """How stored pixels become input (mean, std, maximum), if the file says so."""
        facts = self._json("preprocessing")
        if facts is not None and not _are_facts(facts, self.input_shape[0]):
            raise PackedFileError(
                'damaged header: "preprocessing" is not a mean and a std per channel and a maximum'
            )
        return facts

    @property
    def workspace_bytes(self) -> int:
        """Working memory of one run, weights aside."""
        return int(library().surge_workspace_bytes(self._handle))

    @property
    def threads(self) -> int:
        """How many threads one run may use."""
        return self._threads

    @threads.setter
    def threads(self, count: int) -> None:
        self._checked(library().surge_set_threads, ctypes.c_int(count))
        self._threads = count

    @property
    def tier(self) -> str:
        """Name of the kernels in use."""
        name: bytes = library().surge_tier(self._handle)
        return name.decode()

    @tier.setter
    def tier(self, name: str) -> None:
        self._checked(library().surge_set_tier, name.encode())

    def metadata(self, key: str) -> str | None:
        """Return an entry of the file's metadata as text: method, accuracy, rest, checksum."""
        text: bytes | None = library().surge_metadata(self._handle, key.encode())
        return None if text is None else text.decode(errors="replace")

    def run(self, batch: ArrayLike, *more: ArrayLike) -> Array:
        """Run a batch ``[N, *input_shape]`` and return ``[N, *output_shape]``, both fp32.

        The rows of an input may come one by one: word numbers, which of two texts, and where
        there is a word, ``[N, tokens]`` each, for a network that takes ``[N, 3, tokens]``.
        """
        rows = (batch, *more)
        values, result = self._buffers(
            np.stack([np.asarray(r) for r in rows], 1) if more else batch
        )
        self._checked(
            library().surge_run, values.ctypes.data, ctypes.c_int64(len(values)), result.ctypes.data
        )
        return result

    __call__ = run

    def profile(self, batch: ArrayLike) -> list[tuple[str, str, float]]:
        """Run a batch and return (name, kind, microseconds per sample) of every step, in order."""
        values, result = self._buffers(batch)
        count = library().surge_step_count(self._handle)
        times = (ctypes.c_double * count)()
        self._checked(
            library().surge_profile,
            values.ctypes.data,
            ctypes.c_int64(len(values)),
            result.ctypes.data,
            times,
        )
        return [
            (
                library().surge_step_name(self._handle, step).decode(errors="replace"),
                library().surge_step_kind(self._handle, step).decode(),
                times[step] / max(len(values), 1),
            )
            for step in range(count)
        ]

    def _buffers(self, batch: ArrayLike) -> tuple[Array, Array]:
        """Return a batch as the engine reads it, and room for its result."""
        values = np.ascontiguousarray(batch, dtype=np.float32)
        if values.shape[1:] != self.input_shape or values.ndim == 0:
            raise ValueError(
                f"the batch has shape {values.shape}; this network takes [N, "
                f"{', '.join(map(str, self.input_shape))}]."
            )
        return values, np.empty((len(values), *self.output_shape), dtype=np.float32)

    def preprocess(self, images: NDArray[Any]) -> Array:
        """Turn stored images ``[N, H, W, C]`` into a batch: ``(pixel / maximum - mean) / std``."""
        facts = self.preprocessing or {"mean": 0.0, "std": 1.0, "maximum": 255.0}
        mean, std = (np.asarray(facts[key], dtype=np.float64) for key in ("mean", "std"))
        # One product and one sum per pixel, as the training data has them.
        factor, offset = 1 / (facts["maximum"] * std), -mean / std
        values = np.asarray(images, dtype=np.float32) * factor.astype(np.float32)
        return np.ascontiguousarray((values + offset.astype(np.float32)).transpose(0, 3, 1, 2))

    def _checked(self, function: Any, *arguments: Any) -> None:
        error = ctypes.create_string_buffer(ERROR_BYTES)
        if function(self._handle, *arguments, error, ERROR_BYTES):
            raise PackedFileError(error.value.decode(errors="replace"))

    def _dims(self, function: Any) -> tuple[int, ...]:
        dims = (ctypes.c_int64 * 8)()
        return tuple(dims[: function(self._handle, dims, 8)])

    def _json(self, key: str) -> Any:
        text = self.metadata(key)
        try:
            return None if text is None else json.loads(text)
        except (ValueError, RecursionError) as error:
            raise PackedFileError(f'damaged header: "{key}" is not JSON') from error

    def __repr__(self) -> str:
        """Name sizes, method and kernels."""
        return (
            f"<surge_runtime.Model {self.input_shape} -> {self.output_shape}, "
            f"{self.metadata('method')}, {self.tier}>"
        )


def _are_names(given: Any, count: int) -> TypeGuard[list[str]]:
    return (
        isinstance(given, list) and len(given) == count and all(isinstance(n, str) for n in given)
    )


def _are_facts(given: Any, channels: int) -> TypeGuard[dict[str, Any]]:
    if not isinstance(given, dict) or set(given) != {"mean", "std", "maximum"}:
        return False
    lists = [given["mean"], given["std"]]
    if not all(isinstance(part, list) and len(part) == channels for part in lists):
        return False
    numbers = [*given["mean"], *given["std"], given["maximum"]]
    real = all(isinstance(n, int | float) and abs(n) <= LARGEST for n in numbers)
    return real and min(*given["std"], given["maximum"]) > 0
