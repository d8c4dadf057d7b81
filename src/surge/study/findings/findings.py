"""Every claim of the paper beside what was measured here: ``docs/findings.md`` is made from this.

Numbers come from ``results/``, or are counted when the page is made. Verdicts follow from them; the
words about a cause are written by hand for the verdict that they explain, and are left out as soon
as another one is found.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean
from typing import Any

from surge.errors import ConfigError
from surge.recipes import get_recipe
from surge.recipes.variants import row_with
from surge.study import all_methods, results, sweeps
from surge.study.glue import glue_intervals
from surge.study.glue.bootstrap import Difference
from surge.study.glue.glue_intervals import Pair, length_of
from surge.study.markers import replaced
from surge.study.results import data_name, select
from surge.study.statistics import Estimate, estimate
from surge.study.stored_runs import StoredRun, open_run
from surge.study.tables import paired
from surge.train.run import RunFolder

BEGIN, END = "<!-- findings -->\n", "<!-- /findings -->\n"
REPRODUCED, NOT, OPPOSITE = "reproduced", "not reproduced", "the opposite"
OPEN, UNTESTABLE = "open", "not testable here"


@dataclass(frozen=True)
class Measured:
    """What was found: in words with n and interval, and what follows from it."""

    words: str
    verdict: str


@dataclass(frozen=True)
class Finding:
    """One claim of the paper."""

    claim: str
    measure: Callable[[Stored], Measured]
    causes: tuple[tuple[str, str], ...] = ()
    """(verdict, why): shown while that is the verdict."""


@dataclass(frozen=True)
class Stored:
    """Everything that is stored."""

    folder: Path
    runs: Sequence[StoredRun]

    def arm(self, name: str, network: str) -> list[StoredRun]:
        """Return the finished runs of a recipe that were as long as a network's name says."""
        held = [run for run in self.runs if run.arm == name and run.network == network]
        return [run for run in held if run.finished]


def enough(value: Estimate | Difference | None) -> bool:
    """Return whether there are pairs enough for a verdict."""
    return value is not None and value.n >= 3


def judged(value: Estimate | Difference | None, unit: str, *, claimed: int = 1) -> Measured:
    """Say what a paired difference means for a claim about its sign.

    >>> judged(Estimate(3, 0.5, 0.1, 0.25), " points").verdict
    'reproduced'
    """
    if value is None:
        return Measured("nothing stored yet", OPEN)
    if not enough(value):
        pairs = "1 pair" if value.n == 1 else f"{value.n} pairs"
        return Measured(f"{value.mean:+.2f}{unit} ({pairs}: too few)", OPEN)
    low, high = value.interval
    mean = round(value.mean, 9) + 0.0  # not the rounding of a difference that is zero
    words = f"{mean:+.3g}{unit} [{low:+.3g}, {high:+.3g}], n = {value.n}"
    if low * claimed > 0 and high * claimed > 0:
        return Measured(words, REPRODUCED)
    return Measured(words, OPPOSITE if low * claimed < 0 and high * claimed < 0 else NOT)


def gain(model: str, variant: str = "") -> Callable[[Stored], Measured]:
    """Measure ReCU with SURGE, or with a variant of it, minus ReCU on CIFAR-10."""
    return minus(row_with(f"{model}-recu", variant), f"{model}-recu")


def minus(ours: str, theirs: str, *, table: str = "cifar10") -> Callable[[Stored], Measured]:
    """Measure a row minus another, as the recipe of the first has it.

    While that has too few pairs, the longest training that has enough is shown in its place, or
    that has any.
    """

    def measure(stored: Stored) -> Measured:
        recipe = get_recipe(f"{table}-{ours}")
        own, wanted = recipe.train.epochs, {"data": data_name(recipe), "setting": ""}
        kept = select(results.read(stored.folder, table), **wanted, metric=recipe.metric)
        mine = select(kept, row=ours)
        trained = [own, *sorted({r.epochs for r in mine} - {own}, reverse=True)]
        others = select(kept, row=theirs)
        found = {n: paired(select(mine, epochs=n), select(others, epochs=n)) for n in trained}
        some = [n for n in trained if found[n]] or [own]
        shown = next((n for n in some if enough(found[n])), some[0])
        return judged(found[shown], " points" if shown == own else f" points at {shown} epochs")

    return measure


def over_all_methods(table: str) -> Callable[[Stored], Measured]:
    """Measure SURGE minus the same row without it, the mean over all methods of a table.

    A seed of all methods is one value.
    """

    def measure(stored: Stored) -> Measured:
        found = all_methods.pairs(table, results.read(stored.folder, table))
        methods = sum(pair.difference is not None for pair in found)
        return judged(all_methods.over_seeds(found), f" points, {methods} methods")

    return measure


def on_glue(
    ours: str, theirs: str, *, claimed: int = 1, budget: bool = False
) -> Callable[[Stored], Measured]:
    """Measure an arm of GLUE minus another, paired by task and seed; of any BERT that is stored.

    With ``budget``, both were given the same time; else as many epochs. Where the answers of all
    these runs are stored, and three seeds of every task, the interval is a bootstrap over examples
    and seeds and the mean one over tasks; else it is Student's over all pairs.
    """

    def measure(stored: Stored) -> Measured:
        found: dict[str, dict[Pair, float]] = {ours: {}, theirs: {}}
        for r in results.read(stored.folder, "glue"):
            task, _, arm = r.row.partition("-")
            given = r.overrides.get("budget")
            setting = f"budget={given}" if budget and given else ""
            alike = r.setting == setting and budget == bool(given)
            whole = "dev set" in r.data and "first " not in r.data
            if arm in found and alike and whole and r.metric == get_recipe(r.recipe).metric:
                length = length_of(r.overrides, r.epochs)
                found[arm][Pair(task, r.seed, r.data, r.precision, length)] = r.last
        arms = ((ours, found[ours]), (theirs, found[theirs]))
        drawn = glue_intervals.measured(stored.runs, *arms)
        if drawn is None:
            paired_by_t = difference_of(found[ours], found[theirs], claimed=claimed)
            return _named(paired_by_t, "Student's t over pairs")
        by_draws = judged(drawn, " points", claimed=claimed)
        return _named(by_draws, "bootstrap over examples and seeds")

    return measure


def _named(found: Measured, how: str) -> Measured:
    """Say how an interval was made, where there is one."""
    return found if found.verdict == OPEN else replace(found, words=f"{found.words}; {how}")


def toy(claim: str) -> Callable[[Stored], Measured]:
    """Count the answers that 30 seeds of the toy problem give."""

    def measure(stored: Stored) -> Measured:
        path = stored.folder / "toy-claims.json"
        if not path.exists():
            return Measured("nothing stored yet", OPEN)
        answers = [row for row in json.loads(path.read_text()) if row["claim"] == claim]
        if not answers:
            raise ConfigError(f'{path} has no claim "{claim}".')
        verdicts = [row["verdict"] for row in answers]
        n = answers[0]["n"]
        if len(answers) > 2:
            counts = ", ".join(f"{verdicts.count(v)} {v}" for v in dict.fromkeys(verdicts))
            words = f"of {len(answers)} answers {counts}"
        else:
            words = "; ".join(_difference(row) for row in answers)
        alone = ", ".join(str(row["shown_by"]) for row in answers)
        words += f"; shown by {alone} of {n} seeds alone"
        if all(verdict == "supported" for verdict in verdicts):
            return Measured(words, REPRODUCED)
        return Measured(words, OPPOSITE if set(verdicts) == {"opposite"} else NOT)

    return measure


def _difference(row: Mapping[str, Any]) -> str:
    ends = f"[{row['low']:+.3g}, {row['high']:+.3g}]"
    return f"{row['first']} minus {row['second']}: {row['difference']:+.3g} {ends}"


def best_eta(table: str, row: str, claimed: float) -> Callable[[Stored], Measured]:
    """Compare the claimed eta with the best of all others that are stored, seed by seed."""

    def measure(stored: Stored) -> Measured:
        curve, where = _curve(stored, table, row, "eta")
        if curve is None or claimed not in curve.points or len(curve.points) < 3:
            return Measured("fewer than three values of eta are stored", OPEN)
        means = {eta: fmean(seeds.values()) for eta, seeds in curve.points.items()}
        rival = max((eta for eta in means if eta != claimed), key=lambda eta: means[eta])
        shown = ", ".join(f"{eta:g}: {mean:.2f}" for eta, mean in sorted(means.items()))
        found = difference_of(curve.points[claimed], curve.points[rival])
        words = f"{shown} ({where}); minus {rival:g}: {found.words}"
        return Measured(words, found.verdict)

    return measure


def large_scale_hurts(table: str, row: str, above: float) -> Callable[[Stored], Measured]:
    """Compare fixed scales above a value with the adaptive one; the largest decides."""

    def measure(stored: Stored) -> Measured:
        curve, where = _curve(stored, table, row, "fixed_scale")
        adaptive = {} if curve is None else curve.references.get(sweeps.AGS, {})
        large = {} if curve is None else {s: v for s, v in curve.points.items() if s > above}
        if not large or not adaptive:
            return Measured("no run with a large fixed scale is stored", OPEN)
        usual = fmean(adaptive.values())
        falls = {scale: fmean(seeds.values()) - usual for scale, seeds in large.items()}
        largest = max(large)  # named before looking: the worst of several would flatter the claim
        shown = ", ".join(f"{scale:g}: {fall:+.2f}" for scale, fall in sorted(falls.items()))
        found = difference_of(large[largest], adaptive, claimed=-1)
        words = f"minus AGS, {shown} ({where}); at {largest:g}: {found.words}"
        return Measured(words, found.verdict)

    return measure


def difference_of(
    ours: Mapping[Any, float], theirs: Mapping[Any, float], *, claimed: int = 1
) -> Measured:
    """Judge a difference over the seeds, or other keys, that both have."""
    pairs = [ours[seed] - theirs[seed] for seed in sorted(ours.keys() & theirs.keys())]
    return judged(estimate(pairs) if pairs else None, " points", claimed=claimed)


def _curve(stored: Stored, table: str, row: str, key: str) -> tuple[sweeps.Curve | None, str]:
    """Return the stored curve of a row with the most values, then epochs; and what it is of."""
    found = sweeps.curves(results.read(stored.folder, table), key)
    mine = {where: curve for where, curve in found.items() if where[0] == f"{table}-{row}"}
    if not mine:
        return None, ""
    best = max(mine, key=lambda where: (len(mine[where].points), where[2]))
    return mine[best], f"{best[2]} epochs, {best[1]}"


def said(words: str, verdict: str) -> Callable[[Stored], Measured]:
    """Return what needs no measurement."""
    return lambda stored: Measured(words, verdict)


def renewed(text: str, folder: Path, findings: Sequence[Finding]) -> str:
    """Return the page with its table made anew."""
    return replaced(text, BEGIN, END, markdown(folder, findings), page="findings.md")


def read(folder: Path) -> Stored:
    """Return what is stored, runs included."""
    kept = sorted(path for path in (folder / "runs").glob("*") if RunFolder(path).there)
    return Stored(folder, [open_run(path) for path in kept])


def markdown(folder: Path, findings: Sequence[Finding]) -> str:
    """Return the table: claim, measurement, verdict, cause."""
    stored = read(folder)
    lines = [
        "| the paper says | measured here | verdict | cause |",
        "| --- | --- | --- | --- |",
    ]
    for finding in findings:
        found = finding.measure(stored)
        cause = dict(finding.causes).get(found.verdict, "")
        cells = (finding.claim, found.words, f"**{found.verdict}**", cause)
        lines.append("| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |")
    return "\n".join(lines) + "\n"
