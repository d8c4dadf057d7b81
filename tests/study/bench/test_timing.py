"""Turns of contenders, on a clock that tests can read."""

import pytest

from surge.study.bench.timing import LEAST, TURN, Timing, interleaved


class Clock:
    """Time passes only while a contender works."""

    def __init__(self):
        self.now = 0.0
        self.calls = []

    def __call__(self):
        return self.now

    def contender(self, name, seconds):
        def call():
            self.calls.append(name)
            self.now += seconds

        return call


def test_timing_has_median_percentile_and_least():
    found = Timing((5.0, 1.0, 2.0, 3.0, 4.0, 6.0, 7.0, 8.0, 9.0, 10.0))
    assert (found.median, found.p90, found.least) == (5.5, 10.0, 1.0)
    assert Timing((2.0,)).p90 == 2.0 and Timing((2.0,)).processor is None


def test_contenders_are_timed_in_turns_until_the_time_is_over():
    clock = Clock()
    rounds = []
    found = interleaved(
        {"fast": clock.contender("fast", 0.004), "slow": clock.contender("slow", 0.03)},
        seconds=1.0,
        clock=clock,
        worked=lambda: clock.now / 2,
        on_round=rounds.append,
    )
    assert found["fast"].median == pytest.approx(0.004)
    assert found["slow"].median == pytest.approx(0.03)
    assert found["slow"].processor == pytest.approx(0.015)
    assert 1.0 <= clock.now < 1.3 and rounds == list(range(1, len(rounds) + 1))
    # A turn has one call more than it counts: the first brings the weights back into the caches.
    per_turn = {"fast": round(TURN / 0.004), "slow": LEAST}
    for name, count in per_turn.items():
        assert len(found[name].times) == len(rounds) * count
        assert clock.calls.count(name) == 1 + len(rounds) * (count + 1)
    changes = sum(a != b for a, b in zip(clock.calls, clock.calls[1:], strict=False))
    assert changes > len(rounds)


def test_three_rounds_are_run_even_without_time():
    clock, rounds = Clock(), []
    interleaved(
        {"a": clock.contender("a", 1.0)}, seconds=0.001, clock=clock, on_round=rounds.append
    )
    assert rounds == [1, 2, 3]
