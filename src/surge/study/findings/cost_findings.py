"""What is stored, or can be counted, about the paper's claims of cost, size, speed and optimum."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from functools import cache
from statistics import fmean

import torch

from surge.convert import binarize_
from surge.cost import Rest, Summary
from surge.errors import SurgeWarning
from surge.models.bert import BertClassifier
from surge.recipes import get_recipe
from surge.study.bench import cost_table, latency, speed_table
from surge.study.bench.training_networks import NETWORKS
from surge.study.findings.findings import NOT, OPEN, REPRODUCED, Measured, Stored, difference_of
from surge.study.findings.run_findings import Measure
from surge.study.glue import glue_tables
from surge.study.theory.theorem import Verdict, run_study
from surge.summary import summary
from surge.train.detection.cost import cost_of

ROOM = 1.01
"""How far above the paper's a count may lie: tables leave out a last layer, or round down."""


SHOWN = (speed_table.PAPER_FORM, ("surge", "eager"), ("surge", "captured"), ("tied", "captured"))
"""The forms of SURGE whose cost is told, the paper's first."""


def step_cost(network: str, claimed: float, field: str = "step_ms") -> Measure:
    """Measure a step with SURGE over one without, as printed and as done here; captured decides."""
    return _step(network, claimed, field, ("surge", "captured"), SHOWN)


def pointwise_cost(network: str, claimed: float, field: str = "step_ms") -> Measure:
    """Measure the same with auxiliary convolutions of 1x1, the paper's SURGE*."""
    kinds = (("1x1", "eager"), ("1x1", "captured"))
    return _step(network, claimed, field, kinds[1], kinds)


def _step(
    network: str,
    claimed: float,
    field: str,
    decides: tuple[str, str],
    shown: Sequence[tuple[str, str]],
) -> Measure:
    def measure(stored: Stored) -> Measured:
        found = speed_table.over_plain(speed_table.everything(stored.folder), network, field)
        if decides not in found:
            return Measured("nothing stored yet", OPEN)
        kept = [kind for kind in shown if kind in found]
        words = ", ".join(f"{v}, {mode}: {found[v, mode]:.3f}" for v, mode in kept)
        return Measured(words, _at_most(found[decides], claimed))

    return measure


def _at_most(value: float, claimed: float) -> str:
    return REPRODUCED if value <= claimed else NOT


def glue_cost(field: str, claimed: float) -> Measure:
    """Measure what SURGE costs over BiT, on average over the tasks that are stored."""

    def measure(stored: Stored) -> Measured:
        lines = glue_tables.overheads(stored.folder)
        mine = [line for row, line in lines.items() if row.endswith("-bit-surge") and line[field]]
        if not mine:
            return Measured("nothing stored yet", OPEN)
        mean = fmean(line[field] for line in mine)
        models = ", ".join(sorted({line["model"] for line in mine}))
        words = f"{mean:.3f}, mean of {len(mine)} tasks, {models}, {mine[0]['steps']}"
        return Measured(words, _at_most(mean, claimed))

    return measure


def ten_epochs(ours: str, theirs: str) -> Measure:
    """Measure a row minus another after ten epochs of Imagenette, as in the table of costs."""

    def measure(stored: Stored) -> Measured:
        known = cost_table.accuracies(stored.folder)
        return difference_of(known.get((ours, ""), {}), known.get((theirs, ""), {}))

    return measure


def faster(network: str, claimed: float) -> Measure:
    """Measure how often a packed network runs while fp32 runs once, on one thread; least counts."""

    def measure(stored: Stored) -> Measured:
        settings: dict[tuple[object, ...], list[latency.Row]] = {}
        for row in latency.read(stored.folder):
            if (row.network, row.threads, row.batch) == (network, 1, 1):
                settings.setdefault(row.setting, []).append(row)
        gains = {
            str(rows[0].hardware): gain
            for rows in settings.values()
            if (gain := latency.ratio(rows, latency.BASE, by=latency.fairest(rows))) is not None
        }
        if not gains:
            return Measured("nothing stored yet", OPEN)
        words = "; ".join(
            f"{gain:.2f} times {latency.BASE} on one thread, {name}" for name, gain in gains.items()
        )
        return Measured(words, REPRODUCED if min(gains.values()) >= claimed else NOT)

    return measure


@cache
def counted(network: str, rest: Rest = "fp32", exclude: tuple[str, ...] = ()) -> Summary:
    """Count one of the networks whose steps are timed, for one input, without its memory."""
    known = NETWORKS[network]
    with torch.device("meta"), warnings.catch_warnings():
        warnings.simplefilter("ignore", SurgeWarning)
        model = known.build()
        if isinstance(model, BertClassifier):
            model = model.classifier
            example = torch.zeros(1, *known.shape[1:], dtype=torch.long)
        else:
            example = torch.zeros(1, *known.shape)
        binarize_(model, known.method, skip=known.skip)
        return summary(model, example, rest=rest, exclude=exclude)


def resnet18_size(claimed: float) -> Measure:
    """Count the MiB of ResNet-18 without its last layer; real layers in fp32 decide."""

    def measure(stored: Stored) -> Measured:
        kinds: tuple[Rest, ...] = ("fp32", "fp16", "int8")
        sizes = {rest: counted("resnet18-224", rest, ("fc",)).bytes / 2**20 for rest in kinds}
        words = ", ".join(
            f"{size:.2f} MiB with real layers in {rest}" for rest, size in sizes.items()
        )
        return Measured(words, _at_most(sizes["fp32"], claimed * ROOM))

    return measure


def count(claimed: float, unit: str, value: Callable[[], float]) -> Measure:
    """Hold a count against the paper's."""

    def measure(stored: Stored) -> Measured:
        found = value()
        return Measured(f"{found:.4g}{unit}", _at_most(found, claimed * ROOM))

    return measure


@cache
def detector() -> Summary:
    """Count the paper's detector."""
    return cost_of(get_recipe("voc-ida-surge"))


@cache
def _studied() -> Sequence[Verdict]:
    return [result.verdict for result in run_study()]


def closed_form(*, shared: bool) -> Measure:
    """Hold the theorem's scale against the best one of a Monte-Carlo study, ``surge theorem``."""

    def measure(stored: Stored) -> Measured:
        found = [v for v in _studied() if v.scenario.startswith("shared") == shared]
        off = ", ".join(f"{v.scenario} {abs(v.z_closed_form):.0f}" for v in found)
        right = all(v.formula_verdict == "closed form right" for v in found)
        words = f"standard errors from the best scale: {off}"
        return Measured(words, REPRODUCED if right else NOT)

    return measure
