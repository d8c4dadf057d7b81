"""What a run on ImageNet would take on more GPUs, on paper: one measured step and a formula.

With n GPUs, a step of t seconds on b images each, and B bytes of gradients::

    exchange  x = 2 (n - 1) / n * B / bandwidth       a ring; the slowest link counts
    step      between max(t, x), all of it hidden behind the backward, and t + x, none of it
    epoch     ceil(N / (n b)) steps, N = 1,281,167 images

Gradients are fp32, those of auxiliary weights included. Loading and tests are not in it.
"""

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from surge.errors import ConfigError

IMAGES = 1_281_167
"""Training images of ImageNet."""
EPOCHS = 200
"""Of the one-stage recipe."""
PER_NODE = 8
INSIDE, BETWEEN = 300e9, 40e9
"""Bytes per second and GPU that an exchange is assumed to reach: NVLink, and 400 Gbit/s each."""
NETWORK = "reactnet-224"
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

    def hours(self, step: float, epochs: int = EPOCHS) -> float:
        """Return how long so many epochs take."""
        return epochs * math.ceil(IMAGES / self.batch) * step / 3600


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


def read_steps(folder: Path) -> list[dict[str, Any]]:
    """Return the stored steps of the network, compiled: several processes capture no graph."""
    path = folder / "training.jsonl"
    lines = path.read_text().splitlines() if path.exists() else []
    rows = [json.loads(line) for line in lines]
    return [r for r in rows if (r["network"], r["mode"]) == (NETWORK, "compiled")]


def section(folder: Path, sizes: Sequence[int] = (1, 8, 64)) -> str:
    """Return the table; cells without a measured step say *open*."""
    steps = read_steps(folder)
    lines = [
        "| row | GPUs | images per step | gradients, MB | exchange, ms | step, ms | "
        f"{EPOCHS} epochs, hours |",
        "| --- | ---: | ---: | ---: | ---: | ---: | ---: |",
    ]
    for variant, name in VARIANTS.items():
        mine = [r for r in steps if r["variant"] == variant and r["batch"] == 256]
        for gpus in sizes:
            size = 4 * PARAMETERS[variant]
            cells = [name, str(gpus), f"{256 * gpus:,}", f"{size / 1e6:.1f}"]
            cells.append(f"{1e3 * ring_seconds(size, gpus):.2f}")
            if mine:
                made = predict(mine[-1]["step_ms"] / 1e3, 256, PARAMETERS[variant], gpus)
                cells += [
                    _span(1e3 * made.hidden, 1e3 * made.bare),
                    _span(made.hours(made.hidden), made.hours(made.bare)),
                ]
            else:
                cells += ["open", "open"]
            lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines) + "\n\n" + _facts(steps)


def _span(low: float, high: float) -> str:
    first, last = f"{low:.2f}", f"{high:.2f}"
    return first if first == last else f"{first} to {last}"


def _facts(steps: Sequence[dict[str, Any]]) -> str:
    if not steps:
        return "No step of this network is stored yet: times are open.\n"
    used = ", ".join(sorted({str(step["hardware"]) for step in steps}))
    versions = ", ".join(sorted({str(step["torch"]) for step in steps}))
    return f"Steps measured on one {used}, torch {versions}, bf16; all else is on paper.\n"
