"""load_packed: the door to the engine, which is a package of its own and never needs torch."""

import os
from typing import Any

from surge.errors import MissingDependencyError


def load_packed(path: str | os.PathLike[str], *, threads: int = 1) -> Any:
    """Load a packed file into the native engine; the result is called with a NumPy batch.

    Args:
        path: A file that :func:`surge.pack` wrote.
        threads: How many threads one call may use.
    """
    try:
        import surge_runtime

        surge_runtime.tiers()  # loads the native library, which may be missing as well
    except ImportError as error:
        raise MissingDependencyError(
            "load_packed needs the engine: pip install surge-runtime (from a checkout: "
            "pip install ./runtime)."
        ) from error
    return surge_runtime.load(path, threads=threads)
