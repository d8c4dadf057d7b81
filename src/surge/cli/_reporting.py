"""The work behind ``surge report``."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from surge.cli.console import say
from surge.errors import CheckpointMismatchError, ConfigError
from surge.study import figures, results, sweeps
from surge.study.probe import probe_figures
from surge.study.report import run_page
from surge.study.report.page import write_report
from surge.study.stored_runs import StoredRun, one_per_seed, open_run, store
from surge.train.run import CONFIG

if TYPE_CHECKING:
    from rich.console import Console

    from surge.cli.report import ReportCommand


def _keep(paths: list[Path], where: Path, console: Console) -> None:
    """Copy runs, each to a folder of its name; none where two would meet."""
    for path in paths:
        if sum(path.name == other.name for other in paths) > 1:
            raise ConfigError(f"Two runs would be kept as {where / path.name}; rename one.")
        target = (where / path.name).resolve()
        if target == path.resolve():
            raise ConfigError(f"--keep {where}: {path} is there already.")
        if path.resolve() in target.parents:
            raise ConfigError(f"--keep {where} would copy {path} into itself; name another.")
    for path in paths:
        say(console, f"kept {store(path, where)}")


def report(command: ReportCommand, console: Console) -> Path:
    """Write the page, and the figures where they are wanted; return the page's path."""
    figures.require()  # now, not after the work
    if command.out.is_dir():
        raise ConfigError(
            f"--out {command.out} is a folder; name a file, {command.out}/report.html."
        )
    given = command.results != type(command).results  # by default there need be none yet
    if given and not command.results.is_dir():
        raise ConfigError(f"--results {command.results} is no folder; name one of stored results.")
    if not command.runs:
        raise ConfigError(
            "Which runs? Name their folders, or one that holds them: surge report runs"
        )
    # All folders first: a wrong one is said before anything is written.
    runs = _opened(command.runs, console)
    if command.keep is not None:
        _keep([run.path for run in runs], command.keep, console)
    for line in run_page.warnings(runs):
        say(console, line, style="yellow")
    command.out.parent.mkdir(parents=True, exist_ok=True)
    page = write_report(
        command.out,
        run_page.TITLE,
        run_page.make_sections(runs),
        lead=run_page.lead(runs),
        foot=run_page.FOOT,
    )
    if command.figures is not None:
        written = probe_figures.write_all(one_per_seed(runs), command.figures)
        stored = [r for table in sorted(command.results.glob("*.jsonl")) for r in _read(table)]
        written += sweeps.write(stored, command.figures)
        for path in written:
            say(console, f"wrote {path}")
    say(console, f"The page: {page.resolve()}", style="bold")
    return page


def _opened(given: Sequence[Path], console: Console) -> list[StoredRun]:
    """Read the runs; a damaged one that only lies in a folder given is left out and named."""
    runs: list[StoredRun] = []
    damaged: list[CheckpointMismatchError] = []
    for path in _folders(given, console):
        try:
            runs.append(open_run(path))
        except CheckpointMismatchError as error:
            if path in given:
                raise
            damaged.append(error)
    if damaged and not runs:
        raise damaged[0]
    for reason in damaged:
        say(console, f"left out: {reason}", style="yellow")
    return runs


def _folders(given: Sequence[Path], console: Console) -> list[Path]:
    """Return the folders of runs, also those inside of a folder that is none itself.

    What a shell adds for ``runs/*``, a picture or the folder of a benchmark, is left out and named;
    a single path that is no run stays, and is refused.
    """
    found: dict[Path, None] = {}
    other = []
    for path in given:
        inside = (
            [path]
            if (path / CONFIG).exists()
            else [file.parent for file in path.glob(f"*/{CONFIG}")]
        )
        if not inside and path.exists() and len(given) > 1:
            other.append(str(path))
            continue
        found |= dict.fromkeys(sorted(inside) or [path])
    if other and not found:
        found = dict.fromkeys(given[:1])
    elif other:
        line = f"left out, as no runs are in: {', '.join(other)}"
        say(console, line, style="yellow")
    return list(found)


def _read(path: Path) -> list[results.Result]:
    """Return the results of a table; other files beside them have other lines."""
    try:
        return results.read(path.parent, path.stem)
    except ConfigError:
        return []
