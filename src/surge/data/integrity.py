"""Checksums, and the error for data that is there but is not what it should be."""

import hashlib
from pathlib import Path

from surge.errors import SurgeError

_CHUNK = 1 << 20


class DamagedDataError(SurgeError, ValueError):
    """A data file was found but is truncated, altered or not what its name says."""


def sha256_of_file(path: Path) -> str:
    """Return the SHA-256 of a file as lower-case hex, without loading it whole."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while chunk := file.read(_CHUNK):
            digest.update(chunk)
    return digest.hexdigest()


def check_digest(path: Path, *, expected: str, found: str) -> None:
    """Raise :class:`DamagedDataError` naming file, expected and found unless both agree."""
    if expected != found:
        raise DamagedDataError(
            f"{path} is not the official file: its SHA-256 is {found}, expected {expected}. "
            "Delete it and fetch it again."
        )
