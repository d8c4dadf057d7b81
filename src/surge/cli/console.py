"""What the commands print with: one console, one progress bar, one table.

On a terminal these are rich's; in a file or a pipe they become plain lines, one per step, without
colours or cursor movements. Only rank 0 of a distributed run prints anything.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

from rich.console import Console

if TYPE_CHECKING:
    from rich.table import Table

Advance = Callable[[str], None]
"""Called once per finished step, with a few words about it ("" for none)."""

_PLAIN_WIDTH = 132
_NUMBER = re.compile(r"[-+]?\.?\d")


def make_console() -> Console:
    """Return the console for standard output; silent on every rank but 0.

    A pipe has no width: tables get room for their columns instead of being folded at 80.
    """
    plain = not sys.stdout.isatty() and "COLUMNS" not in os.environ
    quiet = os.environ.get("RANK", "0") != "0"
    return Console(width=_PLAIN_WIDTH if plain else None, highlight=False, quiet=quiet)


def say(console: Console, text: str, style: str | None = None) -> None:
    """Print text as it is: its brackets are no markup, and the terminal folds its lines."""
    console.print(text, style=style, markup=False, soft_wrap=True)


def print_error(message: str) -> None:
    """Write ``error: message`` to standard error as one line, whatever the message holds."""
    line = " ".join(message.split())
    console = Console(stderr=True, highlight=False, soft_wrap=True)
    console.print("[bold red]error:[/]", end=" ")
    console.print(line, markup=False)


@contextmanager
def progress(console: Console, description: str, *, total: int) -> Iterator[Advance]:
    """Show ``total`` steps: a bar on a terminal, ``description 3/8 words`` per step elsewhere."""
    if not console.is_terminal:
        yield _plain_progress(console, description, total)
        return
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (
        TextColumn("{task.description}"),
        BarColumn(bar_width=28),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TextColumn("[dim]{task.fields[words]}"),
    )
    with Progress(*columns, console=console) as bar:
        task = bar.add_task(description, total=total, words="")
        yield lambda words: bar.update(task, advance=1, words=words)


def _plain_progress(console: Console, description: str, total: int) -> Advance:
    done = 0

    def advance(words: str) -> None:
        nonlocal done
        done += 1
        line = f"{description} {done}/{total} {words}".rstrip()
        say(console, line)

    return advance


def print_table(
    console: Console,
    rows: Sequence[Mapping[str, object]],
    *,
    title: str | None = None,
    columns: Mapping[str, str] | None = None,
) -> None:
    """Print rows as one table; columns of numbers are right-aligned, floats have four digits.

    ``columns`` chooses and orders the keys and gives each its heading; by default every key of
    the first row is shown under its own name.
    """
    from rich import box
    from rich.measure import Measurement
    from rich.table import Table

    if columns is None:
        columns = {key: key for key in rows[0]} if rows else {}
    table = Table(box=box.SIMPLE_HEAD)
    if title is not None:  # above the table: inside, it would be folded at the table's width
        say(console, title, style="bold")
    for key, heading in columns.items():
        _add_column(table, heading, [row.get(key) for row in rows])
    for row in rows:
        table.add_row(*(format_cell(row.get(key)) for key in columns))
    least = Measurement.get(console, console.options.update(max_width=sys.maxsize), table).minimum
    if least > console.width:  # the terminal folds lines; a column that rich leaves out is lost
        table.width = least
    console.print(table, crop=False)


def _add_column(table: Table, heading: str, values: Sequence[object]) -> None:
    known = [format_cell(value) for value in values if value is not None]
    numeric = bool(known) and all(_NUMBER.match(text) for text in known)
    whole = numeric or not any(" " in text for text in known)
    # A name or a path is there to be copied: lines are broken between words alone.
    words = [word for text in (heading, *known) for word in ([text] if whole else text.split())]
    table.add_column(
        heading,
        justify="right" if numeric else "left",
        no_wrap=whole,
        min_width=max(map(len, words), default=0),
    )


def format_cell(value: object) -> str:
    """Return the text of one table cell, safe for rich.

    >>> format_cell(0.123456), format_cell(12), format_cell(None), format_cell(True)
    ('0.1235', '12', '-', 'yes')
    """
    from rich.markup import escape

    match value:
        case None:
            return "-"
        case bool():
            return "yes" if value else "no"
        case float():
            return f"{value:.4g}"
        case _:
            return escape(str(value))
