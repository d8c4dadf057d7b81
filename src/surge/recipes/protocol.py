"""Rows of all methods under one protocol, each with and without SURGE."""

from collections.abc import Callable
from typing import Any

from surge.method import get_method, list_methods
from surge.recipes.recipe import Recipe, with_surge


def rows_of_all_methods(row: Callable[[str], Recipe]) -> tuple[Recipe, ...]:
    """Return the row of every method that is not for transformers alone, SURGE's right behind."""
    rows = []
    for name in list_methods():
        if get_method(name).for_transformers:
            continue
        rows.append(row(name))
        if not get_method(name).not_compensable:
            rows.append(with_surge(row(name)))
    return tuple(rows)


def clamp_of(method: str) -> dict[str, Any]:
    """Return the architecture's option for what a method needs between the layers.

    RAD's loss judges what a Hardtanh would clamp; its estimator clips the gradient by itself.
    """
    return {"activation": "none"} if method == "rad" else {}
