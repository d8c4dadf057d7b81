"""Where data sets are looked for."""

from collections.abc import Mapping
from pathlib import Path

VARIABLE = "SURGE_DATA"
"""Environment variable that names the data folder when none is given."""

DEFAULT = Path("data")
"""Folder used when neither an argument nor the variable names one."""


def resolve_root(data: str | Path | None, environ: Mapping[str, str]) -> Path:
    """Return the data folder: ``data`` if given, else ``$SURGE_DATA``, else ``./data``.

    The environment is passed in, because only the command line may read it. An empty variable
    counts as unset. The folder need not exist: whoever reads from it says what is missing.

    >>> resolve_root(None, {"SURGE_DATA": "/srv/sets"}).as_posix()
    '/srv/sets'
    >>> resolve_root("here", {"SURGE_DATA": "/srv/sets"}).as_posix()
    'here'
    """
    if data is not None:
        return Path(data).expanduser()
    return Path(environ.get(VARIABLE) or DEFAULT).expanduser()
