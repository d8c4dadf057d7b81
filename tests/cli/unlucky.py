"""What processes of ``surge reproduce --jobs`` meet in tests; they import this module."""

import os
import signal
import time
from contextlib import contextmanager
from dataclasses import replace
from unittest import mock

from surge.cli import _side_by_side
from tests.train.photo_runs import narrow
from tests.train.small import small_sets


@contextmanager
def few_images():
    with mock.patch.object(_side_by_side, "load_sets", lambda *_, **__: small_sets(64, 40)):
        yield


def with_few_images(*args):
    """Train on 64 digits."""
    with few_images():
        return _side_by_side.train_apart(*args)


def narrow_network(*args):
    """Train small networks in the place of large ones."""
    with narrow():
        return _side_by_side.train_apart(*args)


class DeadlyLine:
    """Ends the process when the first epoch is over."""

    def __init__(self, line):
        self.stopped = line.stopped

    def say(self, words):
        os.kill(os.getpid(), signal.SIGKILL)


def killed_diverging_or_late(line, job, command, deadline, side_by_side):
    """Kill one row when its first epoch is over, let another diverge, and the rest begin late."""
    if job.recipe.row == "cnn-bnn":
        line = DeadlyLine(line)
    elif job.recipe.row == "cnn-bnn-surge":
        train = replace(job.recipe.train, lr=1e30, warmup=0)
        job, deadline = replace(job, recipe=replace(job.recipe, train=train)), None
    else:
        while time.monotonic() < deadline:
            time.sleep(0.01)
    return with_few_images(line, job, command, deadline, side_by_side)
