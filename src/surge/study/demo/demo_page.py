"""The page of the demo: one section per thing that was done, made from the results alone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from shlex import quote
from typing import Any

from surge.convert import BinarizeReport
from surge.study import learning
from surge.study.arms import arm_style, draw_panel_alone
from surge.study.demo import demo_engine
from surge.study.demo.demo import ARMS, DIGITS_COLUMNS, digits_rows, verdicts
from surge.study.learning import Run
from surge.study.report.page import (
    Badge,
    Block,
    Code,
    Facts,
    Heading,
    Picture,
    Pictures,
    Section,
    Table,
    Text,
    Tiles,
)
from surge.study.tables import TableRow
from surge.study.theory import toy_figures
from surge.study.theory.toy import ToyOptions
from surge.study.theory.toy_claims import Claim, Logs
from surge.summary import Summary

TITLE = "SURGE: what the demo found"
LEAD = """A binary network stores one bit per weight and multiplies signs. SURGE adds a
full-precision path that repairs its gradient during training and vanishes afterwards. This page was
made from the runs of one command, on this machine; every number in it comes from them."""
FOOT = "One file, no script, nothing loaded from elsewhere: keep it or send it."


@dataclass(frozen=True)
class Findings:
    """Everything the demo measured."""

    options: ToyOptions
    logs: Logs
    claims: Sequence[Claim]
    table: Sequence[TableRow]
    runs: Sequence[Run]
    report: BinarizeReport
    cost: Summary
    environment: Mapping[str, object]
    workers: int
    """Digits runs that were trained at the same time."""
    seconds: float
    shipping: demo_engine.Shipping


def make_sections(found: Findings) -> list[Section]:
    """Return the whole page."""
    return [
        Section("At a glance", [_tiles(found)]),
        Section("Real digits", _digits(found)),
        Section("As one file", _shipping(found.shipping)),
        Section("Toy problem", _toy(found)),
        Section("The network", _network(found)),
        Section("How it was made", _making(found)),
    ]


def _tiles(found: Findings) -> Tiles:
    means = {ARMS[row.row]: row.last.mean for row in found.table if row.last}
    tiles = {f"{arm}, test accuracy": f"{mean:.1f} %" for arm, mean in means.items()}
    cost = found.cost
    share = sum(row.parameters for row in found.report.rows if row.verdict == "binary") / max(
        sum(row.parameters for row in found.report.rows), 1
    )
    tiles["of the weights are one bit"] = f"{100 * share:.1f} %"
    if found.shipping.served:
        packed, floating = found.shipping.packed, found.shipping.floating
        tiles["smaller as a file than float"] = f"{found.shipping.smaller:.1f} ×"
        tiles["as fast as the faster float"] = f"{floating.micros / packed.micros:.1f} ×"
    else:
        tiles["smaller than in fp32"] = f"{cost.float_bytes / max(cost.bytes, 1):.1f} ×"
    supported = sum(claim.verdict == "supported" for claim in found.claims)
    tiles["of the toy claims hold here"] = f"{supported} of {len(found.claims)}"
    return Tiles(tiles)


def _digits(found: Findings) -> list[Block]:
    seeds = max((row.last.n for row in found.table if row.last), default=0)
    epochs = found.table[0].epochs
    tones = {"better": "good", "worse": "bad"}
    rows = [{**row, "verdict": _badge(row["verdict"], tones)} for row in digits_rows(found.table)]
    points = learning.make_rows(found.runs)
    pictures = [_learning_picture(points, name) for name in learning.PANELS]
    arms = dict.fromkeys(run.arm for run in found.runs)
    return [
        Text(
            f"""A small convolutional network on scikit-learn's handwritten digits: 1,438 images
            to train on, 359 to test on, {epochs} epochs, {seeds} {_plural("seed", seeds)}. Every
            arm of a seed starts from the same weights and sees the images in the same order, so
            arms are compared seed by seed."""
        ),
        Table(rows, DIGITS_COLUMNS, _digits_caption(seeds)),
        Pictures(pictures, {arm: arm_style(arm) for arm in arms}),
    ]


def _digits_caption(seeds: int) -> str:
    if seeds == 1:
        return "Test accuracy. One seed is one pair: it has no interval, and can show no effect."
    return (
        "Test accuracy: mean ± standard deviation over the seeds. The difference is paired, with "
        f"Student's 95 % interval; {seeds} seeds can show only large effects."
    )


def _learning_picture(points: Sequence[Mapping[str, Any]], name: str) -> Picture:
    """Draw a panel; where its axis begins above the first epochs, its note says so."""
    figure = draw_panel_alone(points, name, learning.draw_panel)
    note = learning.NOTES.get(name, learning.BAND)
    if name == "accuracy":
        least = figure.axes[0].get_ylim()[0]
        if any(row["panel"] == name and row["low"] < least for row in points):
            note += f"; what is below {least:.1f} % is not shown"
    return Picture(figure, learning.PANELS[name].title, note)


def _shipping(shipping: demo_engine.Shipping) -> list[Block]:
    blocks: list[Block] = [
        Text(
            """Training is over: the binary network of seed 0 (ReCU) was packed into one file, one
            bit per binary weight, and run by the engine, which needs neither torch nor Python."""
        )
    ]
    if shipping.served:
        blocks.append(
            Table(
                demo_engine.rows(shipping),
                demo_engine.COLUMNS,
                "One image per call, one thread, all of them in turns. Bytes: the file, for torch "
                "the fp32 weights alone.",
            )
        )
    return [
        *blocks,
        Text(demo_engine.sentence(shipping)),
        Code(f"surge bench infer {quote(str(shipping.path))}\nsurge classify photo.jpg"),
    ]


def _toy(found: Findings) -> list[Block]:
    options, claims = found.options, found.claims
    return [
        Text(
            f"""A network of two binary layers looks for the minimum of Beale's function, at
            (3, 0.5), which it cannot hit exactly. {options.seeds} starts, {options.steps:,} steps
            of Adam, eta {options.eta:g}; all arms of a seed start the same."""
        ),
        Heading("The way to the minimum"),
        _gallery(found.logs, toy_figures.FIVE, toy_figures.CONVERGENCE),
        Heading("Weights and scales on the way"),
        _gallery(found.logs, toy_figures.FIVE, toy_figures.PARAMETERS),
        Heading("Against noise of the same size"),
        Text(
            """The control: the auxiliary gradient is replaced by random noise of the same norm.
            If that does as well, what helped was not the direction."""
        ),
        _gallery(found.logs, toy_figures.NOISE, ("trajectory", "loss")),
        Heading("What the paper says, and what was measured"),
        _claims_table(claims),
        Text(f"{verdicts(claims).capitalize()}."),
    ]


def _gallery(logs: Logs, arms: Sequence[str], panels: Sequence[str]) -> Pictures:
    rows = toy_figures.make_rows(logs, arms, panels)
    pictures = [
        Picture(
            draw_panel_alone(rows, name, toy_figures.draw_panel),
            toy_figures.PANELS[name].title,
            toy_figures.subtitle(name),
        )
        for name in panels
    ]
    return Pictures(pictures, {arm: arm_style(arm) for arm in arms})


def _claims_table(claims: Sequence[Claim]) -> Table:
    tones = {"supported": "good", "opposite": "bad"}
    rows = [
        {
            "claim": claim.claim,
            "layer": None if claim.layer == "-" else claim.layer,
            "measure": claim.measure,
            "compared": f"{claim.first} − {claim.second}",
            "difference": f"{claim.difference:+.4f} [{claim.low:+.4f}, {claim.high:+.4f}]",
            "effect": None if claim.effect is None else f"{claim.effect:+.2f}",
            "shown_by": claim.shown_by,
            "verdict": _badge(claim.verdict, tones),
        }
        for claim in claims
    ]
    columns = {
        "claim": "the paper says",
        "verdict": "verdict",
        "compared": "compared",
        "layer": "layer",
        "difference": "difference [95 %]",
        "effect": "d",
        "shown_by": "seeds",
        "measure": "measured by",
    }
    return Table(
        rows,
        columns,
        f"Paired over {claims[0].n} seeds; d is the mean over the standard deviation of the "
        "differences, seeds counts those that show the claim alone. A claim is supported where the "
        "whole interval lies on its side. Of "
        f"{len(claims)} intervals of 95 %, about one misses by chance. Final: the last tenth of "
        "the steps; late drift: change of the scale between the last two eighths; relative "
        "spread: standard deviation / mean after the first quarter; loss jumps: mean change of "
        "log10 loss from step to step in the second half.",
    )


def _badge(verdict: object, tones: Mapping[str, str]) -> Badge | None:
    if verdict is None:
        return None
    match tones.get(str(verdict)):
        case "good":
            return Badge(str(verdict), "good")
        case "bad":
            return Badge(str(verdict), "bad")
        case _:
            return Badge(str(verdict))


def _network(found: Findings) -> list[Block]:
    report, cost = found.report, found.cost
    made = [
        {"layer": r.name, "kind": r.kind, "weights": r.parameters, "verdict": r.verdict}
        for r in report.rows
    ]
    counted: list[dict[str, object]] = [
        {
            "layer": r.name,
            "kind": r.kind,
            "bits": f"{r.bits[0]}/{r.bits[1]}",
            "parameters": r.parameters,
            "bytes": r.bytes,
            "MACs": r.macs,
            "OPs": round(r.ops),
        }
        for r in cost.rows
        if r.bytes or r.macs or r.note
    ]
    totals = {"parameters": cost.parameters, "bytes": cost.bytes, "MACs": cost.macs}
    counted.append({"layer": "total", **totals, "OPs": round(cost.ops)})
    closing = str(report).splitlines()[-1]
    return [
        Heading("What binarize_ made binary"),
        Table(made, caption=closing),
        Heading("What it costs"),
        Table(
            counted,
            caption="Bits of weights/inputs, bytes on disk, multiply-accumulates for one image; "
            "OPs = real MACs + bit operations / 64.",
        ),
        Text("\n\n".join(str(cost).splitlines()[-3:])),
    ]


def _making(found: Findings) -> list[Block]:
    environment = found.environment
    commit = environment.get("commit")
    dirty = " with changes" if environment.get("dirty") else ""
    facts = {
        "surge": environment.get("surge"),
        "commit": f"{commit}{dirty}" if commit else None,
        "torch": environment.get("torch"),
        "Python": environment.get("python"),
        "hardware": environment.get("hardware"),
        "digits": f"{found.workers} {_plural('run', found.workers)} at a time, one thread each",
        "time": f"{found.seconds:.0f} s in all",
    }
    return [
        Code(str(environment.get("command"))),
        Facts(facts),
        Text("To go on: train one run, fill a table, look at one method, or check the theorem."),
        Code(
            "surge train digits-cnn-recu-surge --seed 1\nsurge reproduce digits\n"
            "surge methods recu\nsurge theorem"
        ),
    ]


def _plural(word: str, count: int) -> str:
    return word if count == 1 else f"{word}s"
