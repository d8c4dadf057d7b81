"""Files that are written whole or not at all, and folders for them."""

import errno
import json
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

from surge.errors import ConfigError

UNFINISHED = ".part"
"""How the name of a file ends that is still being written."""


@contextmanager
def atomic(path: Path) -> Iterator[BinaryIO]:
    """Open a file for writing so that at any moment the old or the new content is there."""
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.is_dir():  # else the temporary file would be named as what is in the way
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
    try:
        handle, temporary = tempfile.mkstemp(
            dir=path.parent, prefix=f".{path.name}.", suffix=UNFINISHED
        )
    except OSError as error:
        error.filename = str(path)  # nobody asked for the temporary file
        raise
    try:
        with os.fdopen(handle, "wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        os.chmod(temporary, 0o644)  # made for the owner alone
        os.replace(temporary, path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise


def write_whole(path: Path, content: bytes) -> Path:
    """Put ``content`` at ``path`` in one step: a crash or a full disk leaves the old file."""
    with atomic(path) as file:
        file.write(content)
    return path


def json_lines(path: Path) -> list[dict[str, Any]]:
    """Return the objects of a file that has one in every line; none where there is no file."""
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def check_folder(out: Path, option: str = "--out") -> Path:
    """Return the innermost folder on the way to ``out`` that is there already; it takes new files.

    Raises:
        ConfigError: it takes none, or a file is in the way.
    """
    place = nearest_folder(out, option)
    try:
        with tempfile.TemporaryFile(dir=place):  # permissions do not tell: root has them all
            pass
    except OSError as error:
        raise ConfigError(
            f"{option} {out}: nothing can be written in {place} ({error.strerror}); choose another "
            "folder."
        ) from error
    return place


def nearest_folder(out: Path, option: str = "--out") -> Path:
    """Return the innermost folder on the way to ``out`` that is there already.

    Raises:
        ConfigError: a file is in the way.
    """
    place = out.absolute()
    while not place.exists():
        place = place.parent
    if not place.is_dir():
        raise ConfigError(f"{option} {out}: {place} is a file, not a folder.")
    return place
