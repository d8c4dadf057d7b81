"""How many runs train on one GPU, whatever commands began them: alone, a run takes less time.

Every run holds the lock of a file of its own while it trains. The system gives back the locks of a
process that dies, so that only what trains is counted. Where files cannot be locked, a run counts
as the only one.
"""

import os
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import torch


def place_of(device: torch.device) -> Path | None:
    """Return the folder of the locks of a GPU, for this user; None for other devices."""
    if device.type != "cuda":
        return None
    user = os.getuid() if hasattr(os, "getuid") else 0
    uuid = torch.cuda.get_device_properties(device).uuid
    return Path(tempfile.gettempdir()) / f"surge-{user}" / str(uuid)


@contextmanager
def counted(place: Path | None) -> Iterator[Callable[[], int]]:
    """Count as a run at a place, and yield what tells how many there are, this one included."""
    own = None if place is None else _lock(place)
    if place is None or own is None:
        yield lambda: 1
        return
    try:
        yield partial(_locked, place)
    finally:
        number, name = own
        os.close(number)
        Path(name).unlink(missing_ok=True)  # whatever cleans up may have been there before


def _lock(place: Path) -> tuple[int, str] | None:
    """Return a new file with a lock, by its number and its name, if that can be had."""
    try:
        import fcntl

        place.mkdir(mode=0o700, parents=True, exist_ok=True)
        number, name = tempfile.mkstemp(dir=place)
        fcntl.flock(number, fcntl.LOCK_EX)
    except (ImportError, OSError):
        return None
    return number, name


def _locked(place: Path) -> int:
    """Return how many files are locked; those that are not belong to nobody any more."""
    import fcntl

    number = 0
    for path in place.glob("*"):
        try:
            with path.open() as file:
                fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            number += 1
        except OSError:  # its run has just ended
            continue
    return max(number, 1)
