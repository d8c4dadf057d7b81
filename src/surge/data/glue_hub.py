"""GLUE through the package ``datasets``: written once as the official files that all code reads."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from surge.data.glue import Task
from surge.errors import DataNotFoundError, MissingDependencyError
from surge.files import write_whole

HUB = "nyu-mll/glue"
TEXTS = {"mrpc": ("sentence1", "sentence2"), "mnli": ("premise", "hypothesis")}
"""Columns that have other names there than in the official files."""
PARTS = {
    "train": "train",
    "dev": "validation",
    "dev_matched": "validation_matched",
    "dev_mismatched": "validation_mismatched",
}
"""Files without their suffix, and what they are called there."""


def fetch(task: Task, root: Path) -> list[Path]:
    """Write the labelled files of a task below ``root``; files that are there stay as they are.

    Raises:
        MissingDependencyError: ``datasets`` is not installed.
        DataNotFoundError: it cannot get the task.
    """
    try:
        import datasets
    except ImportError as error:
        raise MissingDependencyError(
            "GLUE is fetched by the package datasets, which is not installed: pip install datasets "
            f"- or put the official files into {root / 'glue' / task.folder} yourself."
        ) from error
    written = []
    for part in ("train", *task.tests):
        path = root / "glue" / task.folder / f"{part}.tsv"
        if not path.is_file():
            try:
                rows = datasets.load_dataset(HUB, task.name, split=PARTS[part])
            except Exception as error:  # whatever that package and its network code raise
                raise DataNotFoundError(
                    f"datasets could not get {PARTS[part]} of {HUB}, {task.name} ({error}). Put "
                    f"the official file at {path}."
                ) from error
            text = "".join(f"{line}\n" for line in lines(rows, task))
            write_whole(path, text.encode())
        written.append(path)
    return written


def lines(rows: Any, task: Task) -> Iterator[str]:
    """Yield a task's rows as lines of its file, the header line first where it has one."""
    columns = task.columns or (task.label, *task.sentences)
    if not task.columns:
        yield "\t".join(columns)
    names = getattr(rows.features["label"], "names", None)
    texts = dict(zip(task.sentences, TEXTS.get(task.name, task.sentences), strict=True))
    for row in rows:
        cells = {task.label: _label(row["label"], names, task)}
        cells |= {name: " ".join(str(row[texts[name]]).split()) for name in task.sentences}
        yield "\t".join(cells.get(column, "") for column in columns)


def _label(value: Any, names: list[str] | None, task: Task) -> str:
    if names is not None and set(names) == set(task.labels):
        return names[int(value)]
    return str(value)
