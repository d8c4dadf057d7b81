"""A matplotlib figure as SVG inside a page: without an outer world, in the page's own colours."""

from __future__ import annotations

import io
import re
from html import escape
from typing import TYPE_CHECKING

from surge.study import figures
from surge.study.figures import COLOURS

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_VARIABLES = {
    **{colour: f"var(--{name})" for name, colour in COLOURS.items()},
    "#ececec": "var(--grid)",
    "#555555": "var(--quiet)",
    "#ffffff": "var(--paper)",
    "#000000": "var(--ink)",
}
_COLOUR = re.compile(r"#[0-9a-f]{6}\b")
_DROPPED = (
    re.compile(r"<metadata>.*?</metadata>", re.DOTALL),  # holds addresses of vocabularies
    re.compile(r"<style type=\"text/css\">.*?</style>", re.DOTALL),  # would apply to all the page
    re.compile(r" xmlns(:\w+)?=\"[^\"]*\""),  # HTML knows what svg is
)


def themed(style: str) -> str:
    """Return CSS whose colours are the page's variables, where they are known.

    >>> themed("stroke: #0072b2; fill: #123456")
    'stroke: var(--blue); fill: #123456'
    """
    return _COLOUR.sub(lambda found: _VARIABLES.get(found[0], found[0]), style)


def inline_svg(figure: Figure, *, prefix: str, title: str) -> str:
    """Return a figure as an ``<svg>`` element; ``prefix`` keeps its ids apart from the others'."""
    import matplotlib

    buffer = io.StringIO()
    # Text stays text: smaller, searchable, and in the page's own font.
    settings = {"svg.fonttype": "none", "svg.hashsalt": prefix}
    with figures.look(), matplotlib.rc_context(settings):
        figure.savefig(buffer, format="svg", transparent=True, metadata={"Date": None})
    text = buffer.getvalue()
    text = text[text.index("<svg") :]
    for pattern in _DROPPED:
        text = pattern.sub("", text)
    text = text.replace("xlink:href", "href")
    text = re.sub(r'\bid="', f'id="{prefix}', text)
    text = re.sub(r'(href="|url\()#', rf"\1#{prefix}", text)
    text = re.sub(r"'DejaVu Sans'(, [^;\"]*)?", "var(--sans)", text)
    text = re.sub(r'style="[^"]*"', lambda found: themed(found[0]), text)
    return _with_title(text, title)


def _with_title(text: str, title: str) -> str:
    """Name the drawing for readers who do not see it; its size is the page's matter."""
    head, rest = text.split(">", 1)
    head = re.sub(r' (width|height)="[^"]*"', "", head)
    return f'{head} role="img" aria-label="{escape(title)}">{rest}'
