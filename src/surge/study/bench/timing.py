"""Measure contenders against each other: all in one run, in turns, so that noise hits everyone."""

import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from random import Random

TURN = 0.02
"""Seconds of one contender's turn, at most; at least ``LEAST`` calls are timed in it."""
LEAST = 2

Pairs = list[tuple[float, float]]
"""Seconds and processor seconds of several calls."""


@dataclass(frozen=True)
class Timing:
    """Times of one contender, in seconds."""

    times: tuple[float, ...]
    worked: tuple[float, ...] = ()
    """Processor time of the same calls: without the waits that busy neighbours cause."""

    @property
    def median(self) -> float:
        """The middle one."""
        return statistics.median(self.times)

    @property
    def processor(self) -> float | None:
        """The middle one of the processor times, if they were taken."""
        return statistics.median(self.worked) if self.worked else None

    @property
    def p90(self) -> float:
        """The one that nine of ten do not exceed."""
        ordered = sorted(self.times)
        return ordered[min(len(ordered) - 1, int(0.9 * len(ordered)))]

    @property
    def least(self) -> float:
        """The shortest."""
        return min(self.times)


def interleaved(
    contenders: Mapping[str, Callable[[], object]],
    *,
    seconds: float,
    pause: float = 0.0,
    clock: Callable[[], float] = time.perf_counter,
    worked: Callable[[], float] = time.process_time,
    on_round: Callable[[int], None] = lambda done: None,
) -> dict[str, Timing]:
    """Time all contenders in turns until ``seconds`` have passed, three rounds at least.

    A turn begins with a call that is not timed: it brings the contender's weights back into the
    caches, as they would be if it were alone. The order of a round is drawn anew each time.

    Args:
        contenders: Name and what to call.
        seconds: Time for everything together.
        pause: Seconds of rest before a turn, for thread pools of others that still spin.
        clock: Where times come from.
        worked: Where processor times come from.
        on_round: Called after every round with its number.
    """
    for call in contenders.values():
        call()
    turns = {name: partial(turn, call, clock, worked) for name, call in contenders.items()}
    return in_turns(turns, seconds=seconds, pause=pause, clock=clock, on_round=on_round)


def in_turns(
    turns: Mapping[str, Callable[[], Pairs]],
    *,
    seconds: float,
    pause: float = 0.0,
    clock: Callable[[], float] = time.perf_counter,
    on_round: Callable[[int], None] = lambda done: None,
) -> dict[str, Timing]:
    """Do what :func:`interleaved` does with contenders that time their turns themselves."""
    found: dict[str, Pairs] = {name: [] for name in turns}
    order, draw = list(turns), Random(0)
    end, rounds = clock() + seconds, 0
    while rounds < 3 or clock() < end:
        draw.shuffle(order)
        for name in order:
            if pause:
                time.sleep(pause)
            found[name] += turns[name]()
        rounds += 1
        on_round(rounds)
    return {name: Timing(*zip(*pairs, strict=True)) for name, pairs in found.items()}


def turn(
    call: Callable[[], object],
    clock: Callable[[], float] = time.perf_counter,
    worked: Callable[[], float] = time.process_time,
) -> Pairs:
    """Call once, then time calls; return (time, processor time) of each."""
    call()
    pairs: Pairs = []
    total = 0.0
    while len(pairs) < LEAST or total < TURN:
        begun, busy = clock(), worked()
        call()
        pairs.append((clock() - begun, worked() - busy))
        total += pairs[-1][0]
    return pairs
