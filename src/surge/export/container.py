"""The container of a packed file: safetensors, with a checksum over the whole file."""

import hashlib
import json
from typing import Any

from safetensors.numpy import save

from surge.export.encode import Arrays

FORMAT_VERSION = 1
_BLANK = "0" * 64


def to_bytes(graph: dict[str, Any], arrays: Arrays, facts: dict[str, Any]) -> bytes:
    """Return the file's content; ``facts`` are further entries of the metadata."""
    metadata = {
        "format": "surge",
        "version": str(FORMAT_VERSION),
        "checksum": _BLANK,
        "graph": _compact(graph),
        **{
            key: value if isinstance(value, str) else _compact(value)
            for key, value in facts.items()
        },
    }
    return seal(_in_order(save(arrays, metadata)))


def _in_order(content: bytes) -> bytes:
    """Return a file with sorted metadata, which safetensors shuffles: equal models, equal bytes."""
    size = int.from_bytes(content[:8], "little")
    header = json.loads(content[8 : 8 + size])
    header["__metadata__"] = dict(sorted(header["__metadata__"].items()))
    text = json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode()
    text += b" " * (-len(text) % 8)  # tensors begin at a multiple of 8
    return len(text).to_bytes(8, "little") + text + content[8 + size :]


def metadata_of(content: bytes) -> dict[str, str]:
    """Return the metadata of a file that was written here; the engine reads others with care."""
    size = int.from_bytes(content[:8], "little")
    found: dict[str, str] = json.loads(content[8 : 8 + size])["__metadata__"]
    return found


def seal(content: bytes) -> bytes:
    """Write the checksum: SHA-256 of the file with 64 zeros in its own place.

    The place is the only text ``"checksum":"`` in the header that is not inside a string.
    """
    start = content.index(b'"checksum":"') + len(b'"checksum":"')
    blank = content[:start] + _BLANK.encode() + content[start + 64 :]
    digest = hashlib.sha256(blank).hexdigest().encode()
    return content[:start] + digest + content[start + 64 :]


def _compact(value: Any) -> str:
    return json.dumps(value, separators=(",", ":"))
