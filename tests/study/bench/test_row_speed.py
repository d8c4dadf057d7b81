"""Rows of a table that are timed in turns."""

from surge.study.bench import row_speed
from surge.study.bench.elsewhere import FailedElsewhereError


class Fake:
    """A row that is measured without a process, and may break down."""

    def __init__(self, log, name, *, breaks=False):
        self.log, self.name, self.breaks = log, name, breaks

    def ask(self, function):
        if function is row_speed.facts_of:
            return f"facts of {self.name}"
        self.log.append(self.name)
        if self.breaks:
            raise FailedElsewhereError("gone")
        return float(len(self.log))


def test_a_row_that_breaks_down_does_not_stop_the_others():
    log, failures = [], {}
    rows = {"a": Fake(log, "a"), "x": Fake(log, "x", breaks=True), "b": Fake(log, "b")}
    found = row_speed.timed(rows, rounds=3, block=1, on_failure=failures.__setitem__)
    assert log == ["a", "x", "b", "a", "b", "a", "b"]
    assert failures == {"x": "gone"}
    assert found == {"a": ("facts of a", 4.0), "b": ("facts of b", 5.0)}
