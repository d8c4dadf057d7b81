"""Differences between arms on GLUE, with intervals over the examples of dev sets and over seeds.

Made from ``results/runs``: pairs of finished runs whose ``predictions.npz`` are stored.
"""

from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from surge.data.glue import TASKS
from surge.errors import ConfigError
from surge.recipes import get_recipe
from surge.study.glue.bootstrap import DRAWS, Compared, Difference, Drawn, draw, pooled
from surge.study.glue.predictions import has_predictions, read_predictions
from surge.study.results import data_name
from surge.study.stored_runs import StoredRun, open_run
from surge.study.tables import base_row
from surge.train.run import RunFolder

ENOUGH = 3
"""Seeds of every task with which a verdict may rest on drawing them."""


class Pair(NamedTuple):
    """What two runs share that are compared."""

    task: str
    seed: int
    data: str
    """The dev set, and the network whose words it has."""
    precision: str
    length: str
    """``20 epochs``, or ``within 900s`` where a time was given."""


Runs = Mapping[Pair, StoredRun]


def length_of(overrides: Mapping[str, Any], epochs: int) -> str:
    """Say how long a run was trained, or which time it was given.

    >>> length_of({}, 20), length_of({"budget": "900s"}, 7)
    ('20 epochs', 'within 900s')
    """
    given = overrides.get("budget")
    return f"within {given}" if given else f"{epochs} epoch{'s' * (epochs != 1)}"


def by_arm(runs: Sequence[StoredRun]) -> dict[str, dict[Pair, StoredRun]]:
    """Return the runs whose answers on a whole dev set are stored, by arm and by what they share.

    Raises:
        ConfigError: a run is there twice.
    """
    arms: dict[str, dict[Pair, StoredRun]] = {}
    for run in runs:
        recipe, changed = run.recipe, run.environment.get("overrides") or {}
        whole = not recipe.data.held_out and recipe.data.limit is None
        as_it_is = run.setting in ("", f"budget={changed.get('budget')}")
        if recipe.table != "glue" or not whole or not as_it_is or not has_predictions(run):
            continue
        task, _, arm = recipe.row.partition("-")
        length = length_of(changed, recipe.train.epochs)
        pair = Pair(task, run.seed, data_name(recipe), run.precision, length)
        other = arms.setdefault(arm, {}).setdefault(pair, run)
        if other is not run:
            raise ConfigError(
                f"{other.path} and {run.path} are the same run of {recipe.name}, seed {run.seed}: "
                "keep one of them."
            )
    return arms


def compared(ours: Runs, theirs: Runs, pairs: Collection[Pair]) -> list[Compared]:
    """Return what two arms answered, task by task, over some pairs that both have."""
    found = []
    for kind in sorted({pair._replace(seed=0) for pair in pairs}):
        same = sorted(pair for pair in pairs if pair._replace(seed=0) == kind)
        read = [read_predictions(arm[pair]) for arm in (ours, theirs) for pair in same]
        first, labels = read[0], read[0].labels
        for other in read:
            if not np.array_equal(other.labels, labels):
                raise ConfigError(f"{first.path} and {other.path} are not of the same dev set.")
        rows = np.stack([one.answers for one in read])
        metric = TASKS[kind.task].metrics[0]
        mine, others = rows[: len(same)], rows[len(same) :]
        found.append(Compared(kind.task, metric, labels, mine, others))
    return found


def measured(
    runs: Sequence[StoredRun],
    ours: tuple[str, Mapping[Pair, float]],
    theirs: tuple[str, Mapping[Pair, float]],
) -> Difference | None:
    """Return the difference of two arms by bootstrap, over the pairs that have these metrics.

    None unless the answers of all these runs are stored, and every task has three seeds or more.
    """
    arms = by_arm(runs)
    pairs = ours[1].keys() & theirs[1].keys()
    for arm, lasts in (ours, theirs):
        held = arms.get(arm, {})
        if not all(pair in held and _ends(held[pair], lasts[pair]) for pair in pairs):
            return None
    found = compared(arms.get(ours[0], {}), arms.get(theirs[0], {}), pairs)
    if not found or min(len(one.ours) for one in found) < ENOUGH:
        return None
    return pooled([draw(one) for one in found])


def _ends(run: StoredRun, last: float) -> bool:
    """Return whether a stored run is the one that a line of results is about."""
    return run.last is not None and abs(run.last - last) < 1e-3


def section(folder: Path) -> str:
    """Return one line per pair of arms and task, and one for all tasks of the pair."""
    kept = sorted(path for path in (folder / "runs").glob("glue-*") if RunFolder(path).there)
    arms = by_arm([open_run(path) for path in kept])
    lines = [
        line
        for arm in sorted(arms)
        if (base := base_row(arm)) in arms
        for line in _lines(f"{arm} minus {base}", arms[arm], arms[base])
    ]
    if not lines:
        return "Nothing is stored yet.\n"
    head = ("pair", "task", "data", "trained", "seeds", "examples", "difference", "95 % interval")
    rule = ("---",) * 4 + ("---:",) * 4
    table = "".join(f"| {' | '.join(line)} |\n" for line in (head, rule, *lines))
    return f"{table}\n{DRAWS:,} draws of examples and seeds. Differences are in points.\n"


def _lines(name: str, ours: Runs, theirs: Runs) -> list[tuple[str, ...]]:
    lines = []
    both = [pair for pair in ours if pair in theirs]
    kinds = {pair: (_network(pair), pair.precision, _trained(ours[pair], pair)) for pair in both}
    for kind in sorted(set(kinds.values())):
        network, precision, trained = kind
        same = [pair for pair in both if kinds[pair] == kind]
        drawn: list[Drawn] = []
        for task in (task for task in TASKS if any(pair.task == task for pair in same)):
            pairs = [pair for pair in same if pair.task == task]
            drawn += [draw(one) for one in compared(ours, theirs, pairs)]
            how = f"{pairs[0].length}, {precision}"
            lines.append((name, task, network, how, *_cells(drawn[-1:])))
        if len(drawn) > 1:
            how = f"{trained}, {precision}"
            lines.append((name, f"all {len(drawn)}", network, how, *_cells(drawn)))
    return lines


def _network(pair: Pair) -> str:
    return pair.data.partition(", ")[2]


def _trained(run: StoredRun, pair: Pair) -> str:
    """Say what runs of several tasks have in common: recipes differ in their epochs."""
    try:
        own = get_recipe(run.recipe.name).train.epochs
    except ConfigError:  # a row of an earlier version
        return pair.length
    return "own epochs" if pair.length == length_of({}, own) else pair.length


def _cells(drawn: Sequence[Drawn]) -> tuple[str, ...]:
    value = pooled(drawn)
    low, high = (round(end, 9) + 0.0 for end in value.interval)
    few, many = min(value.seeds), max(value.seeds)
    single = [one.compared.task for one in drawn if len(one.compared.ours) == 1]
    only = ""
    if single:
        where = "" if len(single) == len(drawn) else f" of {', '.join(single)}"
        only = f" (one seed{where}: over examples only)"
    return (
        str(few) if few == many else f"{few} to {many}",
        f"{value.examples:,}",
        f"{round(value.mean, 9) + 0.0:+.2f}",
        f"[{low:+.2f}, {high:+.2f}]{only}",
    )
