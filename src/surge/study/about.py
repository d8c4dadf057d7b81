"""What a method says about itself, in the list of methods and on its page."""

import inspect
import sys

from surge.method import Method


def bits_of(method: type[Method]) -> str:
    """Return the bits of weights and of inputs."""
    return "/".join(str(bits) for bits in method.bits)


def formulas_of(method: type[Method]) -> str:
    """Return the formulas of a method, as its class has them."""
    return inspect.cleandoc(method.__doc__ or "").replace("``", "`")


def one_line(method: type[Method]) -> str:
    """Return what a method does in one line.

    A file of ``surge.methods`` is one paper and opens with that line, ``Paper: what it does.``;
    elsewhere it is the first line of the class.
    """
    about: str | None = method.__doc__
    if method.__module__.startswith("surge.methods."):
        about = sys.modules[method.__module__].__doc__ or about
    return inspect.cleandoc(about or "-").split("\n", 1)[0].rstrip(".")
