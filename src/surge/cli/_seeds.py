"""Seeds on the command line: numbers, and ranges of them."""

import re
from typing import Annotated, Any

from tyro.constructors import PrimitiveConstructorSpec


def read_seeds(words: list[str]) -> tuple[int, ...]:
    """Return the seeds that words name; both ends of a range are in it.

    >>> read_seeds(["0", "3-5"])
    (0, 3, 4, 5)
    """
    if not words:
        raise ValueError("Name at least one seed, or a range of them, such as 0-11.")
    seeds: list[int] = []
    for word in words:
        found = re.fullmatch(r"(\d+)(?:-(\d+))?", word)
        first, last = (int(found[1]), int(found[2] or found[1])) if found else (1, 0)
        if last < first:
            raise ValueError(f'"{word}" is neither a seed nor a range of them, such as 0-11.')
        seeds += range(first, last + 1)
    return tuple(seeds)


def _are_seeds(value: Any) -> bool:
    return isinstance(value, tuple) and all(isinstance(seed, int) for seed in value)


Seeds = Annotated[
    tuple[int, ...],
    PrimitiveConstructorSpec(
        nargs="*",
        metavar="[SEED | FIRST-LAST ...]",
        instance_from_str=read_seeds,
        is_instance=_are_seeds,
        str_from_instance=lambda seeds: [str(seed) for seed in seeds],
    ),
]
"""A field of seeds."""
