"""Building in other processes and asking there."""

import os
import time
from functools import partial

import pytest

from surge.study.bench.elsewhere import built
from surge.study.bench.timing import in_turns, turn


class Counter:
    def __init__(self, start):
        self.value, self.process = start, os.getpid()

    def __call__(self):
        self.value += 1


def broken():
    raise ValueError("no such thing")


def dead():
    os._exit(3)


def value_of(counter):
    return counter.value


def process_of(counter):
    return counter.process


def failing(counter):
    raise KeyError("asked too much")


def dying(counter):
    os._exit(4)


def never(name, words):
    raise AssertionError(words)


def test_one_job_builds_here():
    with built({"a": partial(Counter, 1)}, jobs=1, patience=0, on_failure=never) as subjects:
        assert subjects["a"].ask(value_of) == 1
        assert subjects["a"].ask(process_of) == os.getpid()


def test_others_are_built_elsewhere_and_asked_in_turns():
    failures, ready = {}, []
    builders = {"a": partial(Counter, 1), "x": broken, "b": partial(Counter, 5), "y": dead}
    builders["c"] = partial(Counter, 9)
    report = {"on_failure": failures.__setitem__, "on_built": ready.append}
    with built(builders, jobs=2, patience=300, **report) as found:
        assert list(found) == ready == ["a", "b", "c"]
        assert found["a"].ask(process_of) not in (os.getpid(), found["b"].ask(process_of))
        turns = {name: partial(subject.ask, turn) for name, subject in found.items()}
        timings = in_turns(turns, seconds=0)
        assert found["a"].ask(value_of) == 1 + 3 + len(timings["a"].times)
        with pytest.raises(RuntimeError, match="asked too much"):
            found["b"].ask(failing)
        for _ in range(2):  # nobody is there the second time
            with pytest.raises(RuntimeError, match="exit code 4"):
                found["c"].ask(dying)
    assert found["a"]._process.exitcode == 0  # it left by itself
    assert "no such thing" in failures["x"] and "exit code 3" in failures["y"]


def test_what_takes_too_long_is_left_out():
    failures = {}
    with built(
        {"slow": partial(time.sleep, 600)}, jobs=2, patience=0.1, on_failure=failures.__setitem__
    ) as found:
        assert not found
    assert "in time" in failures["slow"]
