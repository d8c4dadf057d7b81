"""What a run on ImageNet would take on more GPUs, on paper: one measured step and a formula.

With n GPUs, a step of t seconds on b images each, and B bytes of gradients::

    exchange  x = 2 (n - 1) / n * B / bandwidth       a ring; the slowest link counts
    step      between max(t, x), all of it hidden behind the backward, and t + x, none of it;
              t itself is a range where no compiled step is stored, see :func:`span`
    epoch     ceil(N / (n b)) steps, N = 1,281,167 images

Gradients are fp32, those of auxiliary weights included. Loading and tests are not in it.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from surge.errors import ConfigError
from surge.study.bench import speed_table
from surge.study.bench.training_speed import MODES, Row

IMAGES = 1_281_167
"""Training images of ImageNet."""
EPOCHS = 200
"""Of the one-stage recipe."""
PER_NODE = 8
INSIDE, BETWEEN = 300e9, 40e9
"""Bytes per second and GPU that an exchange is assumed to reach: NVLink, and 400 Gbit/s each."""
NETWORK, BATCH = "reactnet-224", 256
VARIANTS = {"plain": "ReActNet", "surge": "SURGE", "1x1": "SURGE* (1x1)"}
BODY, PLAIN = 10_985_472, 11_704_424
"""Weights of the binary layers; all parameters of ReActNet's ResNet-18."""
PARAMETERS = {"plain": PLAIN, "surge": PLAIN + BODY, "1x1": PLAIN + BODY // 9}


@dataclass(frozen=True)
class Prediction:
    """A run on so many GPUs."""

    gpus: int
    batch: int
    """Images per step, over all GPUs."""
    exchange: float
    """Seconds to sum the gradients."""
    hidden: float
    """Seconds of a step whose exchange is hidden behind the backward."""
    bare: float
    """Seconds of a step whose exchange is not."""

    def hours(self, step: float) -> float:
        """Return how long all epochs take."""
        return EPOCHS * math.ceil(IMAGES / self.batch) * step / 3600


def ring_seconds(size: int, gpus: int) -> float:
    """Return the time to sum ``size`` bytes over all GPUs.

    >>> round(1e3 * ring_seconds(46_817_696, 8), 3)
    0.273
    """
    if gpus < 1:
        raise ConfigError(f"gpus={gpus} must be at least 1.")
    return 2 * (gpus - 1) / gpus * size / (INSIDE if gpus <= PER_NODE else BETWEEN)


def predict(step: float, images: int, parameters: int, gpus: int) -> Prediction:
    """Return what ``gpus`` would take, from one GPU's step on ``images`` images."""
    exchange = ring_seconds(4 * parameters, gpus)
    return Prediction(gpus, images * gpus, exchange, max(step, exchange), step + exchange)


def read_steps(folder: Path) -> dict[tuple[str, str], Row]:
    """Return the stored steps of the network, by variant and mode."""
    steps = [s for s in speed_table.read(folder) if (s.network, s.batch) == (NETWORK, BATCH)]
    return {(s.variant, s.mode): s for s in steps if s.width == 1}


def span(steps: Mapping[tuple[str, str], Row], variant: str, gpus: int) -> list[Row]:
    """Return the fastest and the slowest step that ``gpus`` could have; nothing if none is stored.

    One process replays a captured step. Several do not capture: theirs is compiled, and where that
    was not measured it lies between the captured and the eager step.
    """
    held = {mode: steps[variant, mode] for mode in MODES if (variant, mode) in steps}
    wanted = [("captured",), ("compiled",)] if gpus == 1 else [("compiled",)]
    for modes in (*wanted, ("captured", "eager")):
        if held.keys() >= set(modes):
            return [held[modes[0]], held[modes[-1]]]
    return []


def section(folder: Path) -> str:
    """Return the table; cells without a measured step say *open*."""
    steps = read_steps(folder)
    used: list[Row] = []
    lines = [
        "| row | GPUs | images per step | gradients, MB | exchange, ms | step, ms | "
        f"{EPOCHS} epochs, hours |",
        "| --- | ---: | ---: | ---: | ---: | ---: | ---: |",
    ]
    for variant, name in VARIANTS.items():
        for gpus in (1, 8, 64):
            size = 4 * PARAMETERS[variant]
            cells = [name, str(gpus), f"{BATCH * gpus:,}", f"{size / 1e6:.1f}"]
            cells.append(f"{1e3 * ring_seconds(size, gpus):.2f}")
            found = span(steps, variant, gpus)
            used += found
            ends = [predict(s.step_ms / 1e3, BATCH, PARAMETERS[variant], gpus) for s in found]
            if ends:
                first, last = ends[0].hidden, ends[-1].bare
                cells.append(_span(1e3 * first, 1e3 * last))
                cells.append(_span(ends[0].hours(first), ends[-1].hours(last)))
            else:
                cells += ["open", "open"]
            lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines) + "\n\n" + _facts(used)


def _span(low: float, high: float) -> str:
    first, last = f"{low:.2f}", f"{high:.2f}"
    return first if first == last else f"{first} to {last}"


def _facts(steps: Sequence[Row]) -> str:
    if not steps:
        return "No step of this network is stored yet: times are open.\n"
    used = ", ".join(sorted({step.hardware for step in steps}))
    versions = ", ".join(sorted({step.torch for step in steps}))
    modes = ", ".join(sorted({step.mode for step in steps}))
    return (
        f"Steps measured on one {used}, torch {versions}, bf16 ({modes}); all else is on paper.\n"
    )
