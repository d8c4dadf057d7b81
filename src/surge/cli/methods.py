"""``surge methods``: every method in one line, or one of them with its formulas and curves."""

from __future__ import annotations

import inspect
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import tyro

if TYPE_CHECKING:
    from rich.console import Console

    from surge.method import Method


@dataclass(frozen=True)
class MethodsCommand:
    """List the binarisation methods; with a name, show its formulas and draw its curves.

    The curves are measured on the code itself: values forward and gradient factors backward, of
    inputs and of weights, at several epochs where the method has a schedule.

    Example:
        surge methods
        surge methods recu
        surge methods irnet --out figures/methods
    """

    name: Annotated[str | None, tyro.conf.Positional, tyro.conf.arg(metavar="[METHOD]")] = None
    """The method to explain; without it all are listed."""
    out: Path = Path("figures/methods")
    """Folder for the picture and its numbers, <name>.png and <name>.csv; made if missing."""

    def run(self, console: Console) -> None:
        """Print, and draw where a method is named."""
        if self.name is None:
            _list(console)
        else:
            _explain(console, self.name, self.out)


def _list(console: Console) -> None:
    from surge.cli.console import print_table
    from surge.method import get_method, list_methods
    from surge.study.about import bits_of, one_line

    methods = [get_method(name) for name in list_methods()]
    rows = [
        {"name": m.name, "bits": bits_of(m), "what": one_line(m), "reference": m.reference}
        for m in methods
    ]
    headings = {"name": "name", "bits": "bits", "what": "what it does", "reference": "reference"}
    print_table(console, rows, title="Methods (bits of weights/inputs)", columns=headings)
    console.print("`surge methods NAME` shows the formulas and draws the curves.", markup=False)


def _explain(console: Console, name: str, out: Path) -> None:
    from surge.cli.console import say
    from surge.method import get_method
    from surge.study.about import bits_of, formulas_of

    method = get_method(name)
    heading = f"{method.name}: {bits_of(method)} bit, {method.reference}"
    say(console, heading, style="bold")
    say(console, f"\n{formulas_of(method)}\n")
    say(console, f"Options   {_options(method)}\n")

    from surge.study import curves, figures

    found = curves.measure(name)
    for path in figures.save(curves.draw(found), found.rows(), out / f"{name}.png"):
        say(console, f"wrote {path}")


def _options(method: type[Method]) -> str:
    """Return the method's keyword options with their defaults, as ``binarize_`` takes them."""
    parameters = inspect.signature(method.__init__).parameters.values()
    options = [p for p in parameters if p.kind is inspect.Parameter.KEYWORD_ONLY]
    return ", ".join(f"{p.name}={p.default!r}" for p in options) or "none"


COMMAND = ("methods", MethodsCommand)
