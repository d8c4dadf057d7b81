"""The page of ``surge report``: any number of runs, finished or not, made from their folders."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import accumulate
from shlex import quote

from surge.recipes.recipe import Recipe
from surge.study.figures import COLOURS
from surge.study.probe import probe_figures
from surge.study.probe.probe_painters import arm_styles
from surge.study.probe.probe_rows import telling
from surge.study.report.chart import Bars, Chart, Curve
from surge.study.report.page import (
    Block,
    Code,
    Facts,
    Heading,
    Picture,
    Pictures,
    Section,
    Text,
    Tiles,
)
from surge.study.report.run_costs import costs_of
from surge.study.report.run_tables import compared, final_estimate, runs_table, state
from surge.study.stored_runs import (
    StoredRun,
    arms,
    grouped,
    in_words,
    networks,
    number,
    one_per_seed,
    ordered,
)

TITLE = "SURGE: what the runs did"
FOOT = "One file, nothing loaded from elsewhere: keep it or send it."
AXES = {
    "train_loss": "training loss",
    "test_loss": "test loss",
    "flips": "flipped bits, %",
    "scale": "mean scale",
    "lr": "learning rate",
}
LOGARITHMIC = ("train_loss", "test_loss", "flips", "scale")
MOST_COSTED = 6
"""Networks whose layers are shown; more would be a page of tables."""
MOST_BEST = 5
"""Networks whose best recipe is shown at a glance."""
MOST_RECORDED, FEWER_PANELS = 3, 6
"""Networks whose gradients are drawn, and the panels of a figure if they are several: a page must
stay small."""


def make_sections(runs: Sequence[StoredRun]) -> list[Section]:
    """Return the whole page; without runs it says what to do."""
    if not runs:
        return [
            Section(
                "No runs",
                [
                    Text(_EMPTY),
                    Code(_FIRST),
                ],
            )
        ]
    runs = ordered(runs)
    counted = one_per_seed(runs)
    made = [
        Section("At a glance", [_tiles(runs), *map(Text, warnings(runs))]),
        Section("Learning curves", [chart(runs)]),
        Section("Compared", compared(counted)),
        Section("Runs", [runs_table(runs)]),
        Section("Layers", _layers(runs)),
    ]
    made += _figures(counted)
    return [*made, Section("How it was made", _making(runs))]


_FIRST = """surge train digits-cnn-recu-surge --record
surge report runs/digits-cnn-recu-surge-seed0"""
_EMPTY = """There is nothing to show yet: no run was given. Train one, then name its folder; what
it records on the way becomes figures of its gradients and weights."""


def lead(runs: Sequence[StoredRun]) -> str:
    """Return the sentence under the title."""
    if not runs:
        return "No run was given."
    found = arms(runs)
    seeds = sorted({run.seed for run in runs})
    shown = ", ".join(map(str, seeds[:8])) + (", …" if len(seeds) > 8 else "")
    return (
        f"{_count(len(runs), 'run')} of {_count(len(found), 'recipe')}, "
        f"seed{'s' * (len(seeds) != 1)} {shown}."
    )


def _count(number: int, word: str) -> str:
    return f"{number} {word}{'s' * (number != 1)}"


def _tiles(runs: Sequence[StoredRun]) -> Tiles:
    tiles = {"runs" if len(runs) != 1 else "run": str(len(runs))}
    tiles["finished"] = str(sum(run.finished for run in runs))
    seconds = sum(run.seconds for run in runs)
    unit, size = ("h", 3600) if seconds >= 3600 else ("min", 60) if seconds >= 60 else ("s", 1)
    tiles["of training"] = f"{seconds / size:.1f} {unit}"
    parts = grouped(one_per_seed(runs), lambda run: (run.network, run.data))
    for (_, data), mine in list(parts.items())[:MOST_BEST]:
        means = {arm: found for arm, held in arms(mine).items() if (found := final_estimate(held))}
        if means:
            arm, found = max(means.items(), key=lambda pair: pair[1].mean)
            epochs = _count(mine[0].recipe.train.epochs, "epoch")
            label = f"{arm}, {data}, {epochs}, n = {found.n}: best at the end"
            tiles[label] = f"{found.mean:.2f} %"
    return Tiles(tiles)


def warnings(runs: Sequence[StoredRun]) -> list[str]:
    """Say what is not as it should be: numbers, seeds, files."""
    counted = one_per_seed(runs)
    shown = telling(counted)
    left_out = ", ".join(name for name in networks(counted) if name not in shown)
    said = {
        "Not finite: {}. Curves have gaps there, and such runs are in no mean.": [
            run.path.name for run in runs if state(run).tone == "bad"
        ],
        "Not in means and figures: {}. Of several runs of a seed one counts, a finished one "
        "before others, then the one written last.": [
            str(run.path) for run in runs if run not in counted
        ],
        "Not in the figures over all networks, as nothing is there to compare with: {}.": (
            [left_out] * bool(left_out)
        ),
        "Not read, as damaged: {}.": [str(file) for run in runs for file in run.damaged],
    }
    return [text.format(_some(names)) for text, names in said.items() if names]


def _some(names: Sequence[str]) -> str:
    return ", ".join(names[:5]) + (", …" if len(names) > 5 else "")


def chart(runs: Sequence[StoredRun]) -> Chart:
    """Return the learning curves of all runs, one colour per arm and part of the data."""
    mixed = {arm for arm, held in arms(runs).items() if len({run.data for run in held}) > 1}
    called = {run: f"{run.arm}, {run.data}" if run.arm in mixed else run.arm for run in runs}
    styles = arm_styles(list(called.values()))
    names = {colour: name for name, colour in COLOURS.items()}
    metrics = {run.metric: f"{_word(run.metric)}, test, %" for run in runs}
    known = {key for run in runs for row in run.epochs for key in row}
    curves = [
        Curve(
            name=f"{called[run]}, seed {run.seed}",
            group=called[run],
            colour=names[styles[called[run]].colour],
            dashed=styles[called[run]].dashes != "-",
            epochs=[int(row["epoch"]) + 1 for row in run.epochs],
            seconds=list(accumulate(number(row.get("seconds")) or 0.0 for row in run.epochs)),
            values={
                key: [number(row[key]) if key in row else False for row in run.epochs]
                for key in (*metrics, *AXES)
                if any(key in row for row in run.epochs)
            },
        )
        for run in runs
    ]
    axes = {key: label for key, label in {**metrics, **AXES}.items() if key in {*known, *metrics}}
    return Chart(curves, axes, LOGARITHMIC)


def _word(metric: str) -> str:
    """Return how a metric is written."""
    name = metric.removeprefix("test_")
    return {"top1": "top-1", "map": "mAP"}.get(name, name)


def _layers(runs: Sequence[StoredRun]) -> list[Block]:
    blocks: list[Block] = []
    found = costs_of([run.recipe for run in runs])
    for title, cost in list(found.items())[:MOST_COSTED]:
        blocks.append(Heading(title))
        if isinstance(cost, str):
            blocks.append(Text(cost))
            continue
        rows: list[Mapping[str, object]] = [
            {
                "layer": row.name,
                "bits": f"{row.bits[0]}/{row.bits[1]}",
                "bytes": row.bytes,
                "ops": row.ops,
                "tone": "blue" if row.bits[0] < 32 else "orange",
            }
            for row in cost.rows
            if row.bytes or row.macs
        ]
        smaller = cost.float_bytes / max(cost.bytes, 1)
        size = f", {smaller:.1f} times less than fp32" if smaller >= 1.05 else ""
        total = (
            "Bits of weights/inputs; blue is binary or of few bits, orange is float. "
            f"{cost.bytes:,} bytes in all{size}; {cost.ops:,.0f} OPs."
        )
        labels = {"layer": "layer", "bits": "bits"}
        columns = {"bytes": "bytes on disk", "ops": "OPs for one sample"}
        blocks.append(Bars(rows, columns, labels, total))
    if len(found) > MOST_COSTED:
        blocks.append(Text(f"{len(found) - MOST_COSTED} further networks are not shown."))
    return blocks


def _figures(runs: Sequence[StoredRun]) -> list[Section]:
    """Return the figures over all networks, then those of every network that was recorded."""
    found: dict[str, list[probe_figures.Sheet]] = {}
    for sheet in probe_figures.sheets(runs):
        found.setdefault(sheet.network, []).append(sheet)
    recorded = [network for network in found if network]
    shown = recorded[:MOST_RECORDED]
    most = probe_figures.MOST_PANELS if len(shown) < 2 else FEWER_PANELS
    made = [
        Section(
            f"Figures: {in_words(network)}" if network else "Figures",
            _pictures(found[network], most),
        )
        for network in ("", *shown)
        if network in found
    ]
    if not recorded:
        text = "Train with --record for figures of gradients, scales and weights."
        made.append(Section("Gradients", [Text(text)]))
    elif len(recorded) > len(shown):
        left = ", ".join(recorded[len(shown) :])
        text = f"Recorded too, and drawn by surge report --figures FOLDER: {left}."
        made.append(Section("Further networks", [Text(text)]))
    return made


def _pictures(sheets: Sequence[probe_figures.Sheet], most: int) -> list[Block]:
    blocks: list[Block] = []
    alone: list[Picture] = []
    for sheet in sheets:
        kind = probe_figures.FIGURES[sheet.name]
        room = probe_figures.MOST_PANELS if kind.across else most
        drawn = probe_figures.panels(sheet.name, sheet.rows, room)
        pictures = [
            Picture(figure, title if len(drawn) > 1 else kind.titled([title]), kind.note)
            for title, figure in drawn.items()
        ]
        if len(drawn) > 1:
            blocks += [Heading(kind.title), Pictures(pictures)]
        else:
            alone += pictures
        if left := list(kind.split(sheet.rows))[len(drawn) :]:
            text = "Not drawn here, but in the CSV of surge report --figures FOLDER: "
            blocks.append(Text(f"{text}{'; '.join(left)}."))
    return [*([Pictures(alone)] if alone else []), *blocks]


def _making(runs: Sequence[StoredRun]) -> list[Block]:
    keys = ("surge", "commit", "torch", "python", "hardware", "cuda")
    facts = {key: _joined([run.environment.get(key) for run in runs]) for key in keys}
    if any(run.environment.get("dirty") for run in runs):
        facts["source"] = "had changes that no commit holds"
    called = dict.fromkeys(str(c) for run in runs if (c := run.environment.get("command")))
    as_called: list[Block] = [Text("As they were called:"), Code("\n".join(called))]
    as_called *= bool(called)
    return [
        Text("To repeat these runs:"),
        Code("\n".join(command(run) for run in runs)),
        *as_called,
        Facts({key: value for key, value in facts.items() if value}),
    ]


def _places(recipe: Recipe) -> list[str]:
    """Return what a run was given besides its recipe's name; DIR and RUN where it is not known."""
    options = recipe.model.options
    words = ["--short"] if recipe.table == "voc" and recipe.train.test_epochs > 1 else []
    if recipe.data.length is not None:
        words.append(f"--model {quote(str(options.get('path') or 'DIR'))}")
    if recipe.distill is not None:
        words.append(f"--teacher {quote(recipe.distill.teacher or 'RUN')}")
    if "start" in options:
        words.append(f"--start {quote(str(options['start'] or 'RUN'))}")
    if options.get("backbone"):
        words.append(f"--backbone {quote(str(options['backbone']))}")
    return words


def command(run: StoredRun) -> str:
    """Return the command line that repeats a run."""
    words = ["surge train", run.recipe.name, f"--seed {run.seed}", *_places(run.recipe)]
    for key, value in (run.environment.get("overrides") or {}).items():
        flag = f"--{key.replace('_', '-')}"
        words.append(flag if value is True else f"{flag} {value}")
    if run.records:
        words.append("--record")
    return " ".join(words)


def _joined(values: Sequence[object]) -> str:
    return ", ".join(dict.fromkeys(str(value) for value in values if value is not None))
