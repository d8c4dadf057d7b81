"""The ``surge`` command: finds its subcommands, parses with tyro, turns errors into one line.

A command is one module in this package that ends with ``COMMAND``::

    @dataclass(frozen=True)
    class ToyCommand:
        '''One line for the list of commands; below it the explanation and an example.'''

        seeds: int = 20
        '''One line that ``surge toy --help`` shows.'''

        def run(self, console: Console) -> int | None:
            from surge.study import #, heavy, imports, live, here:, help, stays, fast
            from surge.study.theory import toy
            ...

    COMMAND = ("toy", ToyCommand)

Nothing else needs an edit; modules whose name begins with an underscore are not looked at. A
name of two words, ``("bench infer", ...)``, makes a nested command; a string ``GROUP`` in any
module of the group is the line shown for it. Exit codes: what ``run`` returns (``None`` is 0), 2
for a mistake of the user or a full disk, 130 after Ctrl-C.
"""

from __future__ import annotations

import errno
import importlib
import inspect
import io
import os
import pkgutil
import sys
from collections.abc import Mapping, Sequence
from contextlib import redirect_stderr
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

from surge.errors import ConfigError, SurgeError, did_you_mean

if TYPE_CHECKING:
    from rich.console import Console

__all__ = ["Command", "discover", "main"]

_USER_MISTAKE = 2
_INTERRUPTED = 130
_DISK_ERRORS = (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.ENAMETOOLONG, errno.ELOOP)
_PATH_ERRORS = (
    FileExistsError,
    FileNotFoundError,
    IsADirectoryError,
    NotADirectoryError,
    PermissionError,
)


class Command(Protocol):
    """What the frame needs of a command: a frozen dataclass with a ``run`` method."""

    def run(self, console: Console) -> int | None:
        """Do the work; return the exit code, or None for success."""


@dataclass(frozen=True)
class CommandTree:
    """All commands by full name (``"bench infer"``), and the lines of their groups."""

    commands: Mapping[str, type[Command]]
    groups: Mapping[str, str] = field(default_factory=dict)

    def under(self, prefix: str) -> dict[str, str]:
        """Return next word -> one line, for everything below ``prefix`` ("" is the top)."""
        start = f"{prefix} " if prefix else ""
        lines: dict[str, str] = {}
        for name in sorted(self.commands):
            if name.startswith(start):
                word = name.removeprefix(start).split()[0]
                lines[word] = self.line(start + word)
        return lines

    def line(self, name: str) -> str:
        """Return the one line that describes a command or a group."""
        if name in self.commands:
            return _doc(self.commands[name]).split("\n", 1)[0]
        return self.groups.get(name) or "Commands: " + ", ".join(self.under(name)) + "."

    def resolve(self, words: Sequence[str]) -> tuple[str, list[str]]:
        """Split words into the longest command or group name and what follows it.

        Raises:
            ConfigError: a word that is no command, with the closest one that is.
        """
        name = ""
        for position, word in enumerate(words):
            options = self.under(name)
            if not options or word.startswith("-"):
                return name, list(words[position:])
            if word not in options:
                where = f"surge {name}".rstrip()
                raise ConfigError(
                    f'unknown command "{word}".{did_you_mean(word, options)} '
                    f"Run `{where} --help` for the list."
                )
            name = f"{name} {word}".lstrip()
        return name, []


def discover() -> CommandTree:
    """Import every module of this package and collect each ``COMMAND`` and ``GROUP``."""
    commands: dict[str, type[Command]] = {}
    groups: dict[str, str] = {}
    for info in pkgutil.iter_modules(__path__):
        if info.name.startswith("_"):  # the work behind a command, with its heavy imports
            continue
        module = importlib.import_module(f"{__name__}.{info.name}")
        if not hasattr(module, "COMMAND"):
            continue
        name, command = module.COMMAND
        if name in commands:
            raise ConfigError(f'two modules of surge.cli define the command "{name}"')
        commands[name] = command
        if hasattr(module, "GROUP"):
            groups[name.rpartition(" ")[0]] = module.GROUP
    return CommandTree(commands, groups)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the ``surge`` command and return its exit code."""
    words, debug = _take_debug(list(sys.argv[1:] if argv is None else argv))
    try:
        return _dispatch(words)
    except KeyboardInterrupt:
        return _fail("interrupted", _INTERRUPTED, debug=debug)
    except BrokenPipeError:  # `surge methods | head`: the reader has enough, nothing is wrong
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        return 0
    except SurgeError as error:
        return _fail(str(error) or type(error).__name__, _USER_MISTAKE, debug=debug)
    except OSError as error:
        if error.errno not in _DISK_ERRORS and not isinstance(error, _PATH_ERRORS):
            raise
        where = f": {error.filename}" if error.filename else ""
        return _fail(f"{error.strerror or error}{where}", _USER_MISTAKE, debug=debug)
    except RuntimeError as error:  # Ctrl-C while a class of torch is made comes in disguise
        if not isinstance(error.__cause__, KeyboardInterrupt):
            raise
        return _fail("interrupted", _INTERRUPTED, debug=debug)


def _take_debug(words: list[str]) -> tuple[list[str], bool]:
    """Remove ``--debug`` wherever it stands, except behind a bare ``--``."""
    end = words.index("--") if "--" in words else len(words)
    kept = [word for word in words[:end] if word != "--debug"]
    return kept + words[end:], len(kept) < end


def _dispatch(words: list[str]) -> int:
    from surge.cli.console import make_console

    if words[:1] == ["--version"]:
        make_console().print(f"surge {_version()}", markup=False)
        return 0
    tree = discover()
    name, rest = tree.resolve(words)
    if name in tree.commands:
        return _run(tree.commands[name], name, rest)
    if rest and rest[0] not in ("-h", "--help"):
        where = f"surge {name}".rstrip()
        raise ConfigError(f'unknown option "{rest[0]}". Run `{where} --help` for the commands.')
    _print_help(make_console(), tree, name)
    return 0


def _run(command: type[Command], name: str, words: list[str]) -> int:
    import tyro

    from surge.cli._optional import REGISTRY
    from surge.cli._parse_errors import one_line
    from surge.cli.console import make_console

    about, said = _doc(command), io.StringIO()
    try:
        with redirect_stderr(said):
            parsed = tyro.cli(
                command, prog=f"surge {name}", description=about, args=words, registry=REGISTRY
            )
    except SystemExit as stop:  # tyro has printed the help (0) or what it could not parse (2)
        if not stop.code:
            return 0
        raise ConfigError(one_line(said.getvalue(), f"surge {name}")) from None
    sys.stderr.write(said.getvalue())
    return parsed.run(make_console()) or 0


def _print_help(console: Console, tree: CommandTree, name: str) -> None:
    from rich.table import Table

    where = f"surge {name}".rstrip()
    about = tree.line(name) if name else "Train, study and ship binary neural networks."
    table = Table.grid(padding=(0, 3))
    table.add_column(style="bold cyan", no_wrap=True)
    table.add_column()
    for word, line in tree.under(name).items():
        table.add_row(f"  {word}", line)
    console.print(f"usage: {where} COMMAND [OPTIONS]\n\n{about}\n", markup=False)
    console.print(table)
    console.print(f"\n`{where} COMMAND --help` shows the options and an example.", markup=False)
    if not name:
        console.print("--version prints the version, --debug the traceback of an error.")


def _doc(command: type[Command]) -> str:
    return inspect.cleandoc(command.__doc__ or "No description.")


def _version() -> str:
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version("surge-bnn")
    except PackageNotFoundError:
        return "(not installed)"


def _fail(message: str, code: int, *, debug: bool) -> int:
    from surge.cli.console import print_error

    if debug:
        import traceback

        traceback.print_exc()
    print_error(message)
    return code
