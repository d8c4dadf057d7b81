"""How many runs train on one GPU, whatever commands began them: alone, a run takes less time.

Every run holds the lock of a file of its own while it trains. The system gives back the locks of a
process that dies, so that only what trains is counted. Where files cannot be locked, a run counts
as the only one.
"""

import os
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from pathlib import Path

import torch


def place_of(device: torch.device) -> Path | None:
    """Return the folder of the locks of a GPU, for this user; None where nothing is counted."""
    if device.type != "cuda" or os.name != "posix":
        return None
    uuid = torch.cuda.get_device_properties(device).uuid
    return Path(tempfile.gettempdir()) / f"surge-{os.getuid()}" / str(uuid)


@contextmanager
def counted(place: Path | None) -> Iterator[Callable[[], int]]:
    """Count as a run at a place, and yield what tells how many there are, this one included."""
    with ExitStack() as stack:
        if place is not None:
            with suppress(OSError):
                _lock(place, stack)
        yield partial(_locked, place)


def _lock(place: Path, stack: ExitStack) -> None:
    """Lock a new file, which is gone when the stack is left."""
    import fcntl

    place.mkdir(mode=0o700, parents=True, exist_ok=True)
    number, name = tempfile.mkstemp(dir=place)
    # Whatever cleans up the folder may be there before.
    stack.callback(Path(name).unlink, missing_ok=True)
    stack.callback(os.close, number)
    fcntl.flock(number, fcntl.LOCK_EX)


def _locked(place: Path | None) -> int:
    """Return how many files are locked; those that are not belong to nobody any more."""
    if place is None:
        return 1
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
