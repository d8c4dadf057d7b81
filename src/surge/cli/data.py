"""``surge data``: which data sets are there, and how to get those that are not."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Annotated

import tyro

from surge.cli.console import print_table, say

if TYPE_CHECKING:
    from rich.console import Console

    from surge.data.download import Progress

SETS = ("cifar10", "digits", "imagenet", "imagenette", "voc", "glue")
TREES = SETS[2:4]


@dataclass(frozen=True)
class DataCommand:
    """Download a data set, or list what is there.

    An interrupted download continues where it stopped. Without a network the error says which
    file to put where; run the command again then, and it is unpacked and checked.

    Example:
        surge data
        surge data cifar10 --data /srv/sets
        surge data glue --tasks mrpc rte
    """

    name: Annotated[str | None, tyro.conf.Positional, tyro.conf.arg(metavar="[SET]")] = None
    """Download cifar10 or glue, look for imagenet, imagenette or voc; without it all are listed."""
    tasks: tuple[str, ...] = ()
    """Tasks of GLUE, by the package `datasets`; all by default."""
    data: str | None = None
    """Folder of the data sets; else $SURGE_DATA, else ./data."""
    url: str | None = None
    """A mirror of the official archive; its files are checked all the same."""

    def run(self, console: Console) -> int | None:
        """List or download."""
        import os

        from surge.data import load_digits, resolve_root
        from surge.errors import ConfigError, did_you_mean

        if self.tasks and self.name != "glue":
            raise ConfigError(
                "--tasks are of GLUE: name the set, surge data glue, or leave them out."
            )
        if self.url is not None and self.name != "cifar10":
            raise ConfigError("--url is a mirror of CIFAR-10: name the set, surge data cifar10.")
        root = resolve_root(self.data, os.environ)
        if self.name is None:
            print_table(console, _listed(root), title=f"Data sets in {root}")
        elif self.name == "cifar10":
            _download(root, self.url, console)
        elif self.name in TREES:
            from surge.data.folders import find_tree, scan_tree
            from surge.train.photos.loading import TREES as PLACES

            for part in scan_tree(find_tree(root, PLACES[self.name])):
                text = f"{part.root}: {len(part):,} images in {len(part.classes)} classes"
                say(console, text)
        elif self.name == "voc":
            from surge.data.voc import load_voc

            for name in ("trainval", "test"):
                found = load_voc(root, name)
                count = sum(len(labels) for labels in found.labels)
                text = f"{name}: {len(found):,} images with {count:,} objects in {found.root}"
                say(console, text)
        elif self.name == "glue":
            self._glue(root, console)
        elif self.name == "digits":
            load_digits("test")  # says so where scikit-learn is missing
            console.print("The digits come with scikit-learn; there is nothing to download.")
        else:
            raise ConfigError(
                f'There is no data set "{self.name}".{did_you_mean(self.name, SETS)} '
                f"Known: {', '.join(SETS)}."
            )
        return 0

    def _glue(self, root: Path, console: Console) -> None:
        """Fetch what is missing of the wanted tasks."""
        from surge.data.glue import TASKS, get_task
        from surge.data.glue_hub import fetch

        for task in [get_task(name) for name in self.tasks or TASKS]:
            for path in fetch(task, root):
                say(console, f"{task.name}: {path}")


def _listed(root: Path) -> list[dict[str, object]]:
    import importlib.util

    from surge.data.cifar10 import BINARY, PICKLED, SHA256

    rows: list[dict[str, object]] = []
    for layout in (BINARY, PICKLED):
        paths = [root / layout.folder / f"{name}{layout.suffix}" for name in SHA256]
        there = [path for path in paths if path.is_file()]
        if there or layout is BINARY:
            whole = sum(_whole(path) for path in there)
            state = f"{whole} of {len(paths)} files in {layout.folder}"
            state += f", {len(there) - whole} of a wrong size" * (whole < len(there))
            hint = "" if whole == len(paths) else f"surge data cifar10 --data {quote(str(root))}"
            rows.append({"data set": "cifar10", "found": state, "to get it": hint})
    known = importlib.util.find_spec("sklearn") is not None
    state = "comes with scikit-learn" if known else "scikit-learn is not installed"
    hint = "" if known else "pip install 'surge-bnn[demo]'"
    rows.append({"data set": "digits", "found": state, "to get it": hint})
    return [*rows, *(_tree(root, name) for name in TREES), _devkit(root), _texts(root)]


def _whole(path: Path) -> bool:
    """Say whether a file of CIFAR-10 has the size of its records; a pickle says more than those."""
    from surge.data.cifar10 import BINARY, RECORD_BYTES, RECORDS

    more = path.stat().st_size - RECORDS * RECORD_BYTES
    return more == 0 or (more > 0 and path.suffix != BINARY.suffix)


def _texts(root: Path) -> dict[str, object]:
    """Say which tasks of GLUE are there."""
    from surge.data.glue import TASKS, find_file
    from surge.errors import DataNotFoundError

    there = []
    for task in TASKS.values():
        try:
            for part in ("train", *task.tests):
                find_file(root, task, part)
        except DataNotFoundError:
            continue
        there.append(task.name)
    hint = "" if len(there) == len(TASKS) else f"surge data glue --data {quote(str(root))}"
    return {"data set": "glue", "found": ", ".join(there) or "not there", "to get it": hint}


def _devkit(root: Path) -> dict[str, object]:
    """Say which years of PASCAL VOC are there."""
    from surge.data.voc import YEARS, find_voc
    from surge.errors import DataNotFoundError

    try:
        folder = find_voc(root)
    except DataNotFoundError:
        hint = f"put VOC2007 (and VOC2012) into {root / 'VOCdevkit'}"
        return {"data set": "voc", "found": "not there", "to get it": hint}
    years = " and ".join(f"VOC{year}" for year in YEARS if (folder / f"VOC{year}").is_dir())
    return {"data set": "voc", "found": f"{years} in {folder.name}", "to get it": ""}


def _tree(root: Path, name: str) -> dict[str, object]:
    """Say whether an ImageFolder tree is there; its images are not counted."""
    from surge.data.folders import find_tree
    from surge.errors import DataNotFoundError
    from surge.train.photos.loading import TREES as PLACES

    try:
        folder = find_tree(root, PLACES[name])
    except DataNotFoundError:
        hint = f"put folders train and val into {root / PLACES[name][0]}"
        return {"data set": name, "found": "not there", "to get it": hint}
    return {"data set": name, "found": f"train and val in {folder.name}", "to get it": ""}


def _download(root: Path, url: str | None, console: Console) -> None:
    from surge.data import download_cifar10
    from surge.data.cifar10 import URL
    from surge.data.download import ARCHIVE_SHA256

    checksum = ARCHIVE_SHA256 if url is None else None
    with _bytes_shown(console) as progress:
        folder = download_cifar10(root, url=url or URL, sha256=checksum, progress=progress)
    say(console, f"CIFAR-10 is complete in {folder}")


@contextmanager
def _bytes_shown(console: Console) -> Iterator[Progress]:
    """Show bytes as they arrive: a bar on a terminal, a line at every tenth elsewhere."""
    if not console.is_terminal:
        yield _plain_lines(console)
        return
    from rich.progress import (
        BarColumn,
        DownloadColumn,
        Progress,
        TextColumn,
        TimeRemainingColumn,
        TransferSpeedColumn,
    )

    columns = (
        TextColumn("{task.description}"),
        BarColumn(bar_width=28),
        DownloadColumn(),
        TransferSpeedColumn(),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=console) as bar:
        task = bar.add_task("cifar10", total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total or None)


def _plain_lines(console: Console) -> Progress:
    shown = -1

    def show(done: int, total: int) -> None:
        nonlocal shown
        tenth = 10 * done // total if total else done >> 24
        if tenth != shown:
            shown = tenth
            of = f" of {total / 1e6:.1f}" if total else ""
            console.print(f"cifar10: {done / 1e6:.1f}{of} MB", markup=False)

    return show


COMMAND = ("data", DataCommand)
