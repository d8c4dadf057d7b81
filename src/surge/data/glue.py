"""GLUE in its official files: one folder of TSVs per task, read strictly."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from surge.data.integrity import DamagedDataError
from surge.errors import ConfigError, DataNotFoundError, did_you_mean

Split = Literal["train", "dev", "test"]


@dataclass(frozen=True)
class Task:
    """One task: where its files are, which columns hold what, and how it is judged."""

    name: str
    folder: str
    sentences: tuple[str, ...]
    """Columns of the one or two texts, by the names in the header line."""
    label: str
    """Column of the label."""
    labels: tuple[str, ...]
    """Accepted labels in the order of the classes; empty for a score from 0 to 5."""
    metrics: tuple[str, ...]
    """Reported numbers; the first decides which step was the best."""
    columns: tuple[str, ...] = ()
    """Names of the columns of a file without header line."""
    tests: tuple[str, ...] = ("dev",)
    """Files without their suffix that a run is tested on; the first one decides."""
    skips_bad_rows: bool = False
    """Whether rows with another number of columns are left out, as everybody does for QQP."""

    @property
    def outputs(self) -> int:
        """Outputs of the classifier; one for a score."""
        return len(self.labels) or 1


_PAIR = ("sentence1", "sentence2")
_ENTAILMENT = ("entailment", "not_entailment")
TASKS: dict[str, Task] = {
    task.name: task
    for task in (
        Task(
            "cola",
            "CoLA",
            ("sentence",),
            "label",
            ("0", "1"),
            ("matthews",),
            columns=("source", "label", "star", "sentence"),
        ),
        Task("sst2", "SST-2", ("sentence",), "label", ("0", "1"), ("accuracy",)),
        Task(
            "mrpc",
            "MRPC",
            ("#1 String", "#2 String"),
            "Quality",
            ("0", "1"),
            ("accuracy", "f1"),
        ),
        Task("stsb", "STS-B", _PAIR, "score", (), ("pearson_spearman", "pearson", "spearman")),
        Task("rte", "RTE", _PAIR, "label", _ENTAILMENT, ("accuracy",)),
        Task("qnli", "QNLI", ("question", "sentence"), "label", _ENTAILMENT, ("accuracy",)),
        Task(
            "qqp",
            "QQP",
            ("question1", "question2"),
            "is_duplicate",
            ("0", "1"),
            ("accuracy", "f1"),
            skips_bad_rows=True,
        ),
        Task(
            "mnli",
            "MNLI",
            _PAIR,
            "gold_label",
            ("contradiction", "entailment", "neutral"),
            ("accuracy",),
            tests=("dev_matched", "dev_mismatched"),
        ),
    )
}


@dataclass(frozen=True)
class Examples:
    """The rows of one file."""

    texts: tuple[tuple[str, ...], ...]
    """One or two texts per row."""
    labels: tuple[float, ...]
    """Class numbers, or scores."""
    skipped: int = 0
    """Rows that were left out because of their number of columns."""

    def __len__(self) -> int:
        return len(self.labels)


def get_task(name: str) -> Task:
    """Return a task by name.

    >>> get_task("mrpc").metrics
    ('accuracy', 'f1')
    """
    if name not in TASKS:
        raise ConfigError(
            f'GLUE has no task "{name}" here.{did_you_mean(name, TASKS)} Tasks: {", ".join(TASKS)}.'
        )
    return TASKS[name]


def find_file(root: Path, task: Task, part: str) -> Path:
    """Return the path of ``train``, ``dev`` (or another file without suffix) of a task."""
    places = [root / above / task.folder / f"{part}.tsv" for above in ("glue", "glue_data", ".")]
    for path in places:
        if path.is_file():
            return path
    raise DataNotFoundError(
        f"GLUE's {task.folder} has no {part}.tsv below {root} (looked for {places[0]}). Put the "
        f"official file there, or name the folder that holds glue/ with --data or $SURGE_DATA."
    )


def read_examples(path: Path, task: Task) -> Examples:
    """Read a labelled file of a task.

    Raises:
        DamagedDataError: an empty file, a header without the right columns, a row with another
            number of columns, a label that does not exist.
    """
    try:
        text = path.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        raise DamagedDataError(f"{path} is not UTF-8 text: {error}. Fetch it again.") from error
    # Not splitlines: some sentences contain other line separators.
    lines = [line.rstrip("\r") for line in text.split("\n")]
    while lines and not lines[-1]:
        lines.pop()
    first = 0 if task.columns else 1
    if len(lines) <= first:
        raise DamagedDataError(f"{path} is empty: no row of {task.name} in it. Fetch it again.")
    columns = task.columns or tuple(lines[0].split("\t"))
    wanted = [_column(path, columns, name) for name in task.sentences]
    label = _column(path, columns, task.label)
    texts, labels, skipped = [], [], 0
    for number, line in enumerate(lines[first:], start=first + 1):
        cells = line.split("\t")
        if len(cells) != len(columns):
            if task.skips_bad_rows:
                skipped += 1
                continue
            raise DamagedDataError(
                f"{path}, line {number} has {len(cells)} columns, expected {len(columns)} "
                f"({', '.join(columns)})."
            )
        texts.append(tuple(cells[index] for index in wanted))
        labels.append(_label(cells[label], task, f"{path}, line {number}"))
    if not texts:
        raise DamagedDataError(f"{path}: none of its {skipped} rows has {len(columns)} columns.")
    return Examples(tuple(texts), tuple(labels), skipped)


def _column(path: Path, columns: Sequence[str], name: str) -> int:
    if name not in columns:
        raise DamagedDataError(
            f'{path} has no column "{name}".{did_you_mean(name, columns)} Its header line has: '
            f"{', '.join(columns)}."
        )
    return columns.index(name)


def _label(text: str, task: Task, where: str) -> float:
    if task.labels:
        if text not in task.labels:
            raise DamagedDataError(
                f'{where}: the label "{text}" of {task.name} is none of {", ".join(task.labels)}.'
            )
        return float(task.labels.index(text))
    try:
        score = float(text)
    except ValueError:
        score = -1.0
    if not 0 <= score <= 5:
        raise DamagedDataError(f'{where}: the score "{text}" is not a number from 0 to 5.')
    return score
