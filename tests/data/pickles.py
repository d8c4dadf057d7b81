"""Writes batches as Python 2 did, opcode by opcode: the form of the official files."""

import struct


def _text(value):
    return b"U" + bytes([len(value)]) + value


def _int(value):
    return b"J" + struct.pack("<i", value)


def batch_pickle(labels, pixels, *, width=3072, kind=b"u1", module=b"numpy.core.multiarray"):
    """Return the pickle of {"labels": [...], "data": array}; a bytes label stays text."""
    rows = len(pixels) // width
    items = b"".join(_text(x) if isinstance(x, bytes) else _int(x) for x in labels)
    dtype = b"cnumpy\ndtype\n" + _text(kind) + b"K\x00K\x01\x87R"
    dtype += b"(K\x03" + _text(b"|") + b"NNN" + _int(-1) + _int(-1) + b"K\x00tb"
    array = b"c" + module + b"\n_reconstruct\ncnumpy\nndarray\nK\x00\x85" + _text(b"b") + b"\x87R"
    state = b"(K\x01" + _int(rows) + _int(width) + b"\x86" + dtype + b"\x89"
    state += b"T" + struct.pack("<i", len(pixels)) + pixels + b"tb"
    body = _text(b"batch_label") + _text(b"testing batch 1 of 1")
    body += _text(b"labels") + b"](" + items + b"e"
    body += _text(b"data") + array + state
    return b"\x80\x02}(" + body + b"u."
