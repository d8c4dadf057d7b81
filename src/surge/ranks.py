"""Which of several processes this is, if there are several at all."""

import torch


def joined() -> bool:
    """Return whether this process belongs to a group of processes."""
    return torch.distributed.is_available() and torch.distributed.is_initialized()


def this_rank() -> int:
    """Return the number of this process among those that train together."""
    return torch.distributed.get_rank() if joined() else 0


def share_of(count: int, rank: int, ranks: int) -> tuple[int, int]:
    """Return the positions (start, stop) of a batch that a process has.

    >>> [share_of(9, rank, 2) for rank in (0, 1)]
    [(0, 4), (4, 9)]
    """
    return rank * count // ranks, (rank + 1) * count // ranks


def count_ranks() -> int:
    """Return the number of processes that train together."""
    return torch.distributed.get_world_size() if joined() else 1
