"""Fetch CIFAR-10 from its authors: resumable, checked, unpacked without trusting the archive."""

import gzip
import http.client
import os
import re
import shutil
import tarfile
import tempfile
import urllib.error
import urllib.request
import zlib
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from shlex import quote

from surge.data.cifar10 import BINARY, RECORD_BYTES, RECORDS, SHA256, URL
from surge.data.integrity import DamagedDataError, check_digest, sha256_of_file
from surge.errors import ConfigError, DataNotFoundError, SurgeError

ARCHIVE = URL.rpartition("/")[2]
"""Name of the archive below the data root."""

ARCHIVE_SHA256 = "c4a38c50a1bc5f3a1c5537f2155ab9d68f9f25eb1ed8d9ddda3db29a59bca1dd"
"""Of the authors' archive (they publish its MD5, c32a1d4ab5d03f1284b67883e8d87530)."""

Progress = Callable[[int, int], None]
"""Called with (bytes so far, bytes in all); 0 in all where the server does not say."""

_CHUNK = 1 << 18
_NETWORK_ERRORS = (OSError, http.client.HTTPException)
_ARCHIVE_ERRORS = (tarfile.TarError, EOFError, zlib.error, gzip.BadGzipFile)


class TransferError(SurgeError, ConnectionError):
    """The network or the server failed before a file was complete."""


def download_cifar10(
    root: str | Path,
    *,
    url: str = URL,
    sha256: str | None = ARCHIVE_SHA256,
    progress: Progress | None = None,
    attempts: int = 3,
    timeout: float = 30.0,
) -> Path:
    """Put the binary version below ``root`` and return its folder.

    Does nothing where all six files are there and right. An archive that lies in ``root``
    already is used instead of the network, an interrupted download is continued.

    Args:
        root: the data folder; made if need be.
        url: a mirror of the official archive.
        sha256: checksum of the archive, None for a mirror that packed it anew; the files inside
            are checked in any case.
        progress: called while bytes arrive.
        attempts: how often to try; each continues where the last one stopped.
        timeout: seconds without a byte before an attempt is given up.
    """
    if not url.startswith(("http://", "https://")):
        raise ConfigError(f"url={url!r} is not accepted: it must begin with http:// or https://.")
    root = Path(root)
    folder = root / BINARY.folder
    expected = {f"{name}{BINARY.suffix}": digest for name, digest in SHA256.items()}
    if all(_is_right(folder / name, digest) for name, digest in expected.items()):
        return folder
    root.mkdir(parents=True, exist_ok=True)
    archive = root / ARCHIVE
    fetched = not archive.is_file()
    if fetched:
        _fetch_with_retries(url, archive, progress, attempts=attempts, timeout=timeout)
    try:
        if sha256 is not None:
            check_digest(archive, expected=sha256, found=sha256_of_file(archive))
        extract(archive, folder, expected)
    except DamagedDataError:
        # Ours to remove, or the next call would take it for one put there by hand.
        if fetched:
            archive.unlink()
        raise
    if fetched:
        archive.unlink()
    return folder


def fetch(url: str, path: Path, *, progress: Progress | None = None, timeout: float = 30) -> None:
    """Download ``url`` to ``path``; bytes gather in ``path.part``, which a later call continues.

    Raises:
        TransferError: the network failed; what has arrived is kept.
    """
    part = path.with_name(f"{path.name}.part")
    have = part.stat().st_size if part.exists() else 0
    with _open(url, have, timeout) as response:
        start, total = _position(response)
        if start not in (0, have):
            raise TransferError(f"the server sent bytes from {start:,}, not {have:,}")
        done = start
        with part.open("r+b" if start else "wb") as file:
            file.seek(start)
            for chunk in _chunks(response):
                file.write(chunk)
                done += len(chunk)
                if progress is not None:
                    progress(done, total)
    if total and done != total:
        raise TransferError(f"the connection ended at {done:,} of {total:,} bytes")
    os.replace(part, path)


def extract(archive: Path, folder: Path, expected: Mapping[str, str]) -> None:
    """Unpack the ``expected`` files (name -> SHA-256) of ``folder.name`` into ``folder``.

    No path is ever taken from the archive; links, special files and members that point outside
    it make the whole archive suspect. Files appear under their names only once all are right.
    """
    with tempfile.TemporaryDirectory(dir=folder.parent, prefix=f".{folder.name}-") as scratch:
        try:
            _unpack(archive, folder.name, set(expected), Path(scratch))
        except _ARCHIVE_ERRORS as error:
            raise DamagedDataError(
                f"{archive} is not a readable tar.gz archive: {error}. "
                "Delete it and fetch it again."
            ) from error
        for name, digest in expected.items():
            path = Path(scratch) / name
            if not path.is_file():
                raise DamagedDataError(f"{archive} lacks {folder.name}/{name}.")
            check_digest(archive / name, expected=digest, found=sha256_of_file(path))
        folder.mkdir(exist_ok=True)
        for name in expected:
            os.replace(Path(scratch) / name, folder / name)


def _is_right(path: Path, digest: str) -> bool:
    return path.is_file() and sha256_of_file(path) == digest


def _fetch_with_retries(
    url: str, archive: Path, progress: Progress | None, *, attempts: int, timeout: float
) -> None:
    """Fetch, continuing after each failure; at the end say how to do it by hand."""
    for attempt in range(1, attempts + 1):
        try:
            return fetch(url, archive, progress=progress, timeout=timeout)
        except TransferError as error:
            if attempt == attempts:
                command = f"surge data cifar10 --data {quote(str(archive.parent))}"
                raise DataNotFoundError(
                    f"Could not download {url}: {error}. Run the command again to continue where "
                    f"it stopped. Without a network, get {ARCHIVE} from {URL} on another machine, "
                    f"put it at {archive} and run `{command}`."
                ) from error


def _open(url: str, have: int, timeout: float) -> http.client.HTTPResponse:
    """Ask for the bytes from ``have`` on, or for all of them if the server refuses that."""
    request = urllib.request.Request(url, headers={"Range": f"bytes={have}-"} if have else {})
    try:
        response: http.client.HTTPResponse = urllib.request.urlopen(request, timeout=timeout)
    except urllib.error.HTTPError as error:
        if have and error.code == http.client.REQUESTED_RANGE_NOT_SATISFIABLE:
            # Nothing lies behind what we have: it was whole already, or is another file.
            return _open(url, 0, timeout)
        raise TransferError(str(error)) from error
    except _NETWORK_ERRORS as error:
        raise TransferError(str(error) or type(error).__name__) from error
    return response


def _chunks(response: http.client.HTTPResponse) -> Iterator[bytes]:
    """Read to the end; only reading is the network's fault, writing has errors of its own."""
    while True:
        try:
            chunk = response.read(_CHUNK)
        except _NETWORK_ERRORS as error:
            raise TransferError(str(error) or type(error).__name__) from error
        if not chunk:
            return
        yield chunk


def _position(response: http.client.HTTPResponse) -> tuple[int, int]:
    """Return where in the file the response begins, and the size of the file (0: unknown)."""
    if response.status == http.client.PARTIAL_CONTENT:
        header = response.headers.get("Content-Range", "")
        match = re.fullmatch(r"bytes (\d+)-\d+/(\d+|\*)", header)
        if match is None:
            raise TransferError(f"unreadable Content-Range {header!r}")
        return int(match[1]), 0 if match[2] == "*" else int(match[2])
    length = response.headers.get("Content-Length", "")
    return 0, int(length) if length.isdecimal() else 0


def _unpack(archive: Path, folder: str, wanted: set[str], scratch: Path) -> None:
    """Copy the wanted members out, one by one, to names of our own."""
    with tarfile.open(archive, "r:gz") as tar:
        for member in tar:
            parts = member.name.split("/")
            if (
                member.name.startswith("/")
                or ".." in parts
                or not (member.isfile() or member.isdir())
            ):
                raise DamagedDataError(
                    f"{archive} is not the official archive: its member {member.name!r} would "
                    "lie outside the data folder or is a link. Nothing was unpacked."
                )
            name = parts[-1]
            if parts != [folder, name] or name not in wanted:
                continue
            if member.size != RECORDS * RECORD_BYTES:
                raise DamagedDataError(
                    f"{archive}: {member.name} has {member.size:,} bytes, "
                    f"expected {RECORDS * RECORD_BYTES:,}."
                )
            source = tar.extractfile(member)
            if source is not None:
                with source, (scratch / name).open("wb") as target:
                    shutil.copyfileobj(source, target)
