"""One self-contained HTML page: titles, text, tables and figures, and nothing from elsewhere.

    write_report("page.html", "Digits", [Section("Accuracy", [Text("..."), Table(rows)])])

Figures become inline SVG whose colours are variables of the page's style sheet, so that the same
picture is right on a light and on a dark screen. The page loads nothing and is read on a phone as
well as on a desk. It has a script only if it has a chart or a table that can be sorted.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from surge.files import atomic
from surge.study.arms import ArmStyle
from surge.study.figures import Row
from surge.study.report.chart import Bars, Chart, bars_html, chart_html
from surge.study.report.style import STYLE
from surge.study.report.svg import inline_svg, themed

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = [
    "Badge",
    "Bars",
    "Chart",
    "Code",
    "Facts",
    "Heading",
    "Picture",
    "Pictures",
    "Section",
    "Table",
    "Text",
    "Tiles",
    "render",
    "write_report",
]


@dataclass(frozen=True)
class Badge:
    """A table cell with a colour: a verdict."""

    text: str
    tone: Literal["good", "bad", "plain"] = "plain"


@dataclass(frozen=True)
class Heading:
    """A title inside a section."""

    text: str


@dataclass(frozen=True)
class Text:
    """Paragraphs, divided by empty lines."""

    text: str


@dataclass(frozen=True)
class Code:
    """Lines for a terminal or an editor."""

    text: str


@dataclass(frozen=True)
class Facts:
    """Names with their values, one below the other."""

    facts: Mapping[str, object]


@dataclass(frozen=True)
class Tiles:
    """A few large numbers, each with what it is."""

    tiles: Mapping[str, str]
    """What it is -> the number as text."""


@dataclass(frozen=True)
class Table:
    """Rows under headings; columns of numbers are right-aligned, floats have four digits."""

    rows: Sequence[Row]
    columns: Mapping[str, str] | None = None
    """Which keys, in which order, under which headings; all keys of the first row by default."""
    caption: str = ""
    sortable: bool = False
    """Whether a click on a heading sorts the rows."""


@dataclass(frozen=True)
class Picture:
    """A matplotlib figure with its caption."""

    figure: Figure
    title: str
    """What it shows; also what a screen reader says."""
    note: str = ""
    """A quiet line after the title."""


@dataclass(frozen=True)
class Pictures:
    """Figures side by side, below each other where the page is narrow, with one legend."""

    pictures: Sequence[Picture]
    legend: Mapping[str, ArmStyle] | None = None


SCRIPT = Path(__file__).with_name("report.js")
"""What makes charts and tables respond; it goes into the page."""

Block = Heading | Text | Code | Facts | Tiles | Table | Pictures | Chart | Bars


@dataclass(frozen=True)
class Section:
    """A titled part of the page."""

    title: str
    blocks: Sequence[Block]


def write_report(
    path: Path | str, title: str, sections: Sequence[Section], *, lead: str = "", foot: str = ""
) -> Path:
    """Write the page in one step: a crash or a full disk leaves the old one."""
    path = Path(path)
    with atomic(path) as file:
        file.write(render(title, sections, lead=lead, foot=foot).encode())
    return path


def render(title: str, sections: Sequence[Section], *, lead: str = "", foot: str = "") -> str:
    """Return the page as text."""
    links = "".join(f'<a href="#{_slug(s.title)}">{escape(s.title)}</a>' for s in sections)
    numbers = iter(range(10_000))
    body = "\n".join(_section(section, numbers) for section in sections)
    responds = any(
        isinstance(block, Chart) or (isinstance(block, Table) and block.sortable)
        for section in sections
        for block in section.blocks
    )
    script = f"<script>{SCRIPT.read_text()}</script>\n" if responds else ""
    return (
        '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{escape(title)}</title>\n<style>{STYLE}</style>\n</head>\n<body>\n"
        f"<header><div><h1>{escape(title)}</h1>\n{_paragraphs(lead)}\n<nav>{links}</nav></div>"
        f"</header>\n<main>\n{body}\n</main>\n<footer>{_paragraphs(foot)}</footer>\n"
        f"{script}</body>\n</html>\n"
    )


def _section(section: Section, numbers: Iterable[int]) -> str:
    inside = "\n".join(_block(block, numbers) for block in section.blocks)
    name = _slug(section.title)
    return f'<section id="{name}">\n<h2>{escape(section.title)}</h2>\n{inside}\n</section>'


def _block(block: Block, numbers: Iterable[int]) -> str:
    match block:
        case Heading(text):
            return f"<h3>{escape(text)}</h3>"
        case Text(text):
            return _paragraphs(text)
        case Code(text):
            return f"<pre>{escape(text)}</pre>"
        case Facts(facts):
            pairs = (f"<dt>{escape(k)}</dt><dd>{_cell(v)}</dd>" for k, v in facts.items())
            return f"<dl>{''.join(pairs)}</dl>"
        case Tiles(tiles):
            boxes = (
                f'<div class="tile"><b>{escape(number)}</b><span>{escape(what)}</span></div>'
                for what, number in tiles.items()
            )
            return f'<div class="tiles">{"".join(boxes)}</div>'
        case Table():
            return _table(block)
        case Pictures():
            return _pictures(block, numbers)
        case Chart():
            return chart_html(block)
        case Bars():
            return bars_html(block)


def _paragraphs(text: str) -> str:
    parts = (part for part in re.split(r"\n\s*\n", text.strip()) if part)
    return "\n".join(f"<p>{escape(' '.join(part.split()))}</p>" for part in parts)


def _slug(title: str) -> str:
    """Return a title as an anchor.

    >>> _slug("What became binary?")
    'what-became-binary'
    """
    return re.sub(r"[^a-z0-9]+", "-", title.lower()).strip("-") or "section"


_NUMBER = re.compile(r"[-+−]?[\d.,]+( ?[%±]|\b)")


def _table(table: Table) -> str:
    columns = table.columns
    if columns is None:
        columns = {key: key for key in table.rows[0]} if table.rows else {}
    marks = {key: _alignment([row.get(key) for row in table.rows]) for key in columns}
    head = "".join(f"<th{marks[key]}>{escape(name)}</th>" for key, name in columns.items())
    lines = (
        "".join(f"<td{marks[key]}>{_cell(row.get(key))}</td>" for key in columns)
        for row in table.rows
    )
    body = "\n".join(f"<tr>{line}</tr>" for line in lines)
    kind = ' class="sortable"' if table.sortable else ""
    # Outside the table: on a narrow page that scrolls, its caption shall not.
    caption = f'<p class="caption">{escape(table.caption)}</p>' if table.caption else ""
    return (
        f'<div class="wide"><table{kind}><thead><tr>{head}</tr></thead>\n'
        f"<tbody>\n{body}\n</tbody></table></div>{caption}"
    )


def _alignment(values: Sequence[object]) -> str:
    known = [value for value in values if value is not None]
    numeric = all(
        isinstance(v, int | float) or (isinstance(v, str) and _NUMBER.match(v)) for v in known
    )
    return ' class="number"' if known and numeric else ""


def _cell(value: object) -> str:
    match value:
        case None:
            return "–"
        case Badge(text, tone):
            return f'<span class="badge {tone}">{escape(text)}</span>'
        case bool():
            return "yes" if value else "no"
        case float():
            return f"{value:.4g}"
        case int():
            return f"{value:,}"
        case _:
            return escape(str(value))


def _pictures(block: Pictures, numbers: Iterable[int]) -> str:
    keys = (
        f"<span>{_sample(style)}{escape(n)}</span>" for n, style in (block.legend or {}).items()
    )
    legend = f'<div class="legend">{"".join(keys)}</div>' if block.legend else ""
    frames = []
    for picture, number in zip(block.pictures, numbers, strict=False):
        note = f" <span>{escape(picture.note)}</span>" if picture.note else ""
        caption = f"<figcaption>{escape(picture.title)}{note}</figcaption>"
        drawing = inline_svg(picture.figure, prefix=f"f{number}-", title=picture.title)
        frames.append(f"<figure>{caption}{drawing}</figure>")
    return f'{legend}<div class="pictures">{"".join(frames)}</div>'


_DASHES = {"-": "none", "--": "6 3", ":": "2 3", "-.": "6 3 2 3"}


def _sample(style: ArmStyle) -> str:
    """Return a short line as an arm is drawn."""
    colour = themed(f"stroke: {style.colour}")
    dashes = _DASHES.get(style.dashes, "none")
    line = f'<line x1="0" y1="6" x2="34" y2="6" style="{colour}; stroke-width: {style.width + 0.7}"'
    return f'<svg viewBox="0 0 34 12" aria-hidden="true">{line} stroke-dasharray="{dashes}"/></svg>'
