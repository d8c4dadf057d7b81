"""Every option that changes what a method computes, one at a time."""

import inspect
from typing import get_args

import pytest

from surge.method import get_method
from tests.nets import METHODS

NUMBERS = (
    ("dorefa", {"weight_bits": 4, "input_bits": 4}),
    ("dorefa", {"weight_bits": 32}),
    ("dorefa", {"input_bits": 32}),
    ("irnet", {"t_min": 1e-3}),
    ("lws", {"search": 0.2}),
    ("rad", {"until": 0.2}),
    ("slb", {"factor": 1.01, "start": 0.1}),
    ("tbn", {"delta": 0.2}),
)
"""Numbers that take another branch than the default; at epoch 3 of 10 where there is a schedule."""


def _switched(method):
    """Yield what each flag of a method may be besides its default."""
    for option in inspect.signature(get_method(method).__init__).parameters.values():
        if isinstance(option.default, bool):
            yield {option.name: not option.default}
        else:
            others = set(get_args(option.annotation)) - {option.default}
            yield from ({option.name: value} for value in sorted(others))


FLAGS = [(method, options) for method in METHODS for options in _switched(method)]


def named(pairs):
    """Return pairs of method and options as parameters with readable names."""
    return [
        pytest.param(m, o, id="-".join([m, *(f"{key}={value}" for key, value in o.items())]))
        for m, o in pairs
    ]
