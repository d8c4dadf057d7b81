"""The demo: what it needs, which runs it makes, and how their table reads."""

from __future__ import annotations

import importlib
import shutil
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import torch

from surge.convert import BinarizeReport, binarize_
from surge.errors import ConfigError, MissingDependencyError
from surge.files import check_folder
from surge.models import build_model
from surge.recipes import get_recipe, overridden
from surge.recipes.recipe import Recipe
from surge.study.statistics import Estimate, spread
from surge.study.tables import TableRow
from surge.study.theory.toy_claims import Claim
from surge.summary import Summary, summary

ARMS = {
    "cnn-float": "Float",
    "cnn-bnn": "STE",
    "cnn-bnn-surge": "STE+SURGE",
    "cnn-recu": "ReCU",
    "cnn-recu-surge": "ReCU+SURGE",
}
"""The rows of the digits table, and what they are called on the page."""
NEEDED = 100_000_000
"""Bytes that must be free: the demo writes a tenth of that."""


def check_ready(out: Path) -> None:
    """Raise unless the packages, the folder and the disk space that the demo needs are there."""
    missing = [name for name, module in _PACKAGES.items() if not _importable(module)]
    if missing:
        raise MissingDependencyError(
            f"the demo needs {' and '.join(missing)}: pip install 'surge-bnn[demo]'"
        )
    free = shutil.disk_usage(check_folder(out)).free
    if free < NEEDED:
        raise ConfigError(
            f"--out {out}: only {free / 1e6:.0f} MB are free there and the demo wants "
            f"{NEEDED / 1e6:.0f} MB; make room or choose another folder."
        )


_PACKAGES = {"matplotlib": "matplotlib", "scikit-learn": "sklearn.datasets"}


def _importable(module: str) -> bool:
    try:
        importlib.import_module(module)
    except ImportError:
        return False
    return True


def digits_recipes(epochs: int | None) -> list[Recipe]:
    """Return the recipes of the digits table, shortened if told."""
    changes: dict[str, object] = {} if epochs is None else {"epochs": epochs}
    return [overridden(get_recipe(f"digits-{row}"), changes) for row in ARMS]


def example_network() -> tuple[BinarizeReport, Summary]:
    """Return what binarize_ and summary say about the digits network."""
    recipe = get_recipe("digits-cnn-recu")
    assert recipe.method is not None
    model = build_model(recipe.model.name, **recipe.model.options)
    report = binarize_(model, recipe.method.name, **recipe.method.options)
    return report, summary(model, torch.zeros(1, 1, 8, 8))


def verdicts(claims: Sequence[Claim]) -> str:
    """Count the answers to the paper's claims, in words."""
    counts = Counter(claim.verdict for claim in claims)
    said = ", ".join(f"{counts[v]} {v}" for v in ("supported", "not supported", "opposite"))
    return f"of {len(claims)} answers {said}"


def paired(value: Estimate | None) -> str | None:
    """Return a paired difference with its 95 % interval as text."""
    if value is None:
        return None
    low, high = value.interval
    return f"{value.mean:+.2f}" + (f" [{low:+.2f}, {high:+.2f}]" if value.n > 1 else " (one pair)")


def digits_rows(rows: Sequence[TableRow]) -> list[dict[str, object]]:
    """Return the digits table with every cell as it is shown."""
    return [
        {
            "arm": ARMS[row.row],
            "last": spread(row.last),
            "best": spread(row.best),
            "n": row.last.n if row.last else 0,
            "difference": paired(row.difference),
            "verdict": _verdict(row.difference),
        }
        for row in rows
    ]


DIGITS_COLUMNS = {
    "arm": "network",
    "last": "last epoch, %",
    "difference": "minus the same without SURGE [95 %]",
    "verdict": "SURGE",
    "best": "best epoch, %",
    "n": "seeds",
}


def _verdict(value: Estimate | None) -> str | None:
    if value is None:
        return None
    low, high = value.interval
    return "better" if low > 0 else "worse" if high < 0 else "no difference shown"
