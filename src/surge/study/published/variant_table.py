"""The variants of SURGE, as the page on recipes lists them."""

from pathlib import Path

from surge.compensation.options import PathOptions
from surge.recipes.variants import VARIANTS


def section(folder: Path) -> str:
    """Return all variants, each with the settings in which it differs; results play no part."""
    lines = ["| variant | settings |", "| --- | --- |"]
    for name, options in VARIANTS.items():
        changed = {k: v for k, v in vars(options).items() if v != getattr(PathOptions, k)}
        if name:
            settings = ", ".join(f"{key}={value!r}" for key, value in changed.items())
            lines.append(f"| {name} | `{settings}` |")
    return "\n".join(lines) + "\n"
