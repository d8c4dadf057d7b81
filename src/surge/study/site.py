"""What mkdocs adds to the hand-written pages: the method gallery, the recipes and the API.

mkdocs calls the functions whose names begin with ``on_`` (docs/hooks.py hands them on). Everything
is made from the code when the site is built, so that it cannot be out of date.
"""

from __future__ import annotations

import inspect
import io
import re
import shutil
from pathlib import Path
from typing import Any

import surge
from surge.errors import ConfigError
from surge.method import get_method, list_methods
from surge.recipes import get_recipe, list_recipes
from surge.study import curves, figures
from surge.study.about import bits_of, formulas_of, one_line

MADE = ("gallery.md", "api.md")
"""Pages that exist in the site alone."""
SOLID_COLOURS = 64
"""Enough for lines and letters; pictures become a third as large."""


PICTURES = (
    *("gradient-map", "gradient-distribution", "weight-distribution", "optimal-scale", "premises"),
    *("sweep-eta", "sweep-fixed-scale", "accuracy", "final-metric"),
)
"""Figures of stored runs that pages show."""
NETWORKS = ("cifar10-resnet20-60ep", "digits-cnn-20ep")
"""Whose figure a page shows: of the first that has one."""
OTHERS = {"weight-distribution": ("cifar10-resnet18-10ep", *NETWORKS)}


def figure_of(root: Path, name: str) -> Path:
    """Return the stored figure that pages show under a name."""
    folder = root / "results" / "figures"
    places = [folder, *(folder / network for network in OTHERS.get(name, NETWORKS))]
    found = [place / f"{name}.png" for place in places if (place / f"{name}.png").exists()]
    if not found:
        raise ConfigError(f"{folder} has no figure {name}.png: run make figures.")
    return found[0]


def renew_pictures(root: Path) -> None:
    """Copy the figures that pages show to ``docs/images``."""
    for name in PICTURES:
        shutil.copyfile(figure_of(root, name), root / "docs" / "images" / f"{name}.png")


def gallery() -> str:
    """Return the page of all methods, each with formulas, options and curves."""
    parts = [
        "# Method gallery\n\nEvery method that is registered, as its code computes it: "
        "`surge methods NAME` prints and draws the same. Curves show values forward and gradient "
        "factors backward, of inputs and of weights, at several epochs where there is a schedule. "
        "Grey: the surrogate is exactly zero there, which is what SURGE repairs.\n"
    ]
    parts += ["| method | bits | what it does |", "| --- | --- | --- |"]
    names = list_methods()
    for name in names:
        method = get_method(name)
        parts.append(f"| [{name}](#{name}) | {bits_of(method)} | {_cell(one_line(method))} |")
    parts.append("")
    for name in names:
        method = get_method(name)
        about = f"```text\n{formulas_of(method)}\n```\n"
        parts += [f"## {name}\n", f"{method.reference}\n", about]
        parts.append(f"![Forward and backward of {name}](images/methods/{name}.png)\n")
    return "\n".join(parts)


def method_picture(name: str) -> bytes:
    """Return the curves of a method as PNG with few colours."""
    from PIL import Image

    buffer = io.BytesIO()
    with figures.look():
        curves.draw(curves.measure(name)).savefig(buffer, format="png", dpi=100)
    return quantised(Image.open(buffer))


def quantised(picture: Any) -> bytes:
    """Return a picture as PNG with few colours."""
    held = io.BytesIO()
    picture.convert("RGB").quantize(SOLID_COLOURS).save(held, format="PNG", optimize=True)
    return held.getvalue()


def recipe_table() -> str:
    """Return all recipes as a table."""
    lines = ["| recipe | model | method | epochs | paper |", "| --- | --- | --- | ---: | ---: |"]
    for name in list_recipes():
        recipe = get_recipe(name)
        method = recipe.method.name if recipe.method else "float"
        paper = "" if recipe.paper is None else f"{recipe.paper:g}"
        cells = (f"`{name}`", recipe.model.name, method, str(recipe.train.epochs), paper)
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def api() -> str:
    """Return the signature and docstring of every public name."""
    parts = ["# API\n\nWhat `import surge` offers. Everything else is an implementation detail.\n"]
    for name in surge.__all__:
        found = getattr(surge, name)
        about = inspect.cleandoc(found.__doc__ or "")
        kind = "class " if inspect.isclass(found) else ""
        parts += [f"## {name}\n", f"```text\n{kind}{_signature(name, found)}\n```\n"]
        parts.append(f"```text\n{about}\n```\n")
    return "\n".join(parts)


def _signature(name: str, found: Any) -> str:
    try:
        text = str(inspect.signature(found))
    except (TypeError, ValueError):
        return name
    # Quoted annotations of files with postponed evaluation.
    return f"{name}{text}".replace("'", "")


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


def on_config(config: Any) -> Any:
    """Leave out pages that are named but not written yet."""
    folder = Path(config["docs_dir"])

    def written(entry: dict[str, Any]) -> dict[str, Any] | None:
        ((title, page),) = entry.items()
        if isinstance(page, str):
            return entry if page in MADE or (folder / page).exists() else None
        kept = [found for inner in page if (found := written(inner)) is not None]
        return {title: kept} if kept else None

    config["nav"] = [found for entry in config["nav"] if (found := written(entry)) is not None]
    return config


def on_files(files: Any, config: Any) -> Any:
    """Add the generated pages and pictures."""
    from mkdocs.structure.files import File

    made: dict[str, str | bytes] = {"gallery.md": gallery(), "api.md": api()}
    made |= {f"images/methods/{name}.png": method_picture(name) for name in list_methods()}
    for path, content in made.items():
        files.append(File.generated(config, path, content=content))
    return files


_OUTSIDE = re.compile(r"\[([^\]]+)\]\(\.\./([^)]+)\)")


def on_page_markdown(markdown: str, page: Any, config: Any, files: Any) -> str:
    """Put in the recipes; name files outside the site instead of linking to nowhere.

    >>> on_page_markdown("see [the engine](../runtime/README.md)", None, None, None)
    'see the engine (`runtime/README.md`)'
    """
    text = markdown.replace("<!-- recipes -->", recipe_table())

    def named(found: re.Match[str]) -> str:
        if found[1].strip("/`") == found[2].strip("/"):
            return f"`{found[1].strip('`')}`"
        return found[0] if found[2].endswith(".png") else f"{found[1]} (`{found[2]}`)"

    return _OUTSIDE.sub(named, text)
