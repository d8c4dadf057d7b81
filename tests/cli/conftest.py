"""What tests of several commands share."""

import errno
import os
import tempfile

import pytest


@pytest.fixture
def read_only(monkeypatch):
    """Return a function after which a folder takes no new files, as on a read-only disk."""
    real = tempfile.TemporaryFile

    def close(folder):
        def opened(*, dir):
            if dir == folder:
                raise OSError(errno.EROFS, os.strerror(errno.EROFS))
            return real(dir=dir)

        monkeypatch.setattr(tempfile, "TemporaryFile", opened)

    return close
