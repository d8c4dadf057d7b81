"""The figures of a study: each is a title, the function that makes its rows, and a painter.

    rows = FIGURES["scale"].rows(runs)
    figures.save(draw("scale", rows), rows, "scale.png")

``draw`` puts all panels on one sheet; ``panels`` returns each as a figure of its own, for a page.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from surge.study import figures
from surge.study.figures import Row
from surge.study.probe import probe_painters, probe_rows
from surge.study.stored_runs import StoredRun, in_words, networks, ordered

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Groups = dict[str, list[Row]]
MOST_PANELS = 8
"""Panels that one figure shows at most; the CSV has all rows."""


@dataclass(frozen=True)
class Kind:
    """One figure: what it shows, from which rows, how."""

    title: str
    note: str
    rows: Callable[[Sequence[StoredRun]], list[Row]]
    paint: Callable[[Axes, Sequence[Mapping[str, Any]]], None]
    split: Callable[[Sequence[Mapping[str, Any]]], Groups]
    across: bool = False
    """Whether one figure shows all networks; else each network has its own."""

    def titled(self, panels: Sequence[str]) -> str:
        """Return the title over panels of these titles; that of a network alone becomes part."""
        return f"{self.title}: {panels[0]}" if self.across and len(panels) == 1 else self.title


def _by(*keys: str) -> Callable[[Sequence[Mapping[str, Any]]], Groups]:
    """Return a function that sorts rows into panels by some of their columns."""

    def split(rows: Sequence[Mapping[str, Any]]) -> Groups:
        rows = _fewer_layers(rows, keys)
        # A column that is the same everywhere says nothing in a title.
        telling = [key for key in keys if len({row[key] for row in rows}) > 1] or list(keys[:1])
        names = probe_painters.short_names([str(row.get("arm")) for row in rows])
        found: Groups = {}
        for row in rows:
            title = ", ".join(
                in_words(row[key]) if key == "network" else names.get(str(row[key]), str(row[key]))
                for key in telling
            )
            found.setdefault(title, []).append(row)
        return found

    return split


def _fewer_layers(
    rows: Sequence[Mapping[str, Any]], keys: Sequence[str]
) -> Sequence[Mapping[str, Any]]:
    """Leave out layers where each has panels of its own and they are too many; ends stay."""
    if "layer" not in keys:
        return rows
    layers = list(dict.fromkeys(row["layer"] for row in rows))
    others = len({tuple(row[key] for key in keys if key != "layer") for row in rows})
    room = max(MOST_PANELS // max(others, 1), 1)
    if len(layers) <= room:
        return rows
    last = len(layers) - 1
    kept = {layers[round(place * last / max(room - 1, 1))] for place in range(room)}
    return [row for row in rows if row["layer"] in kept]


def _paths(rows: Sequence[Mapping[str, Any]]) -> Groups:
    """A panel per layer, of the arms that have both paths, if there are any."""
    both = {row["arm"] for row in rows if row["series"] == "with"}
    return _by("layer", "arm")([row for row in rows if row["arm"] in both or not both])


def _whole(rows: Sequence[Mapping[str, Any]]) -> Groups:
    return {"": list(rows)} if rows else {}


def _maps(rows: Sequence[Mapping[str, Any]]) -> Groups:
    """Both heat maps, with the range of colours that they share."""
    sizes = [abs(row[key]) for row in rows for key in ("without", "with") if row[key]]
    if not sizes:
        return {}
    ends = {"smallest": max(min(sizes), max(sizes) * 1e-5), "largest": max(sizes)}
    return {
        f"{key} SURGE": [{**row, "value": row[key], **ends} for row in rows]
        for key in ("without", "with")
    }


def _line(axis: str, *, logarithmic: bool = False, zero: bool = False) -> Callable[..., None]:
    def paint(axes: Axes, rows: Sequence[Mapping[str, Any]]) -> None:
        probe_painters.layers(axes, rows, axis=axis, logarithmic=logarithmic, zero=zero)

    return paint


def _arms(axis: str, *, logarithmic: bool = False) -> Callable[..., None]:
    def paint(axes: Axes, rows: Sequence[Mapping[str, Any]]) -> None:
        probe_painters.curves(axes, rows, axis=axis, logarithmic=logarithmic)

    return paint


FIGURES: Mapping[str, Kind] = {
    "final-metric": Kind(
        "After the last epoch",
        "a dot per seed, a line at their mean",
        probe_rows.final_metric,
        probe_painters.final,
        _by("network"),
        across=True,
    ),
    "accuracy": Kind(
        "The metric after every tested epoch",
        "mean over the seeds, band: lowest to highest",
        probe_rows.accuracy,
        _arms("%"),
        _by("network"),
        across=True,
    ),
    "flip-rate": Kind(
        "Weight bits that flip",
        "per epoch, whole network; mean over the seeds, band: lowest to highest",
        probe_rows.flip_rate,
        _arms("% of the bits", logarithmic=True),
        _by("network"),
        across=True,
    ),
    "gradient-map": Kind(
        "Activation gradient of one sample in one layer",
        "log10 of its size; grey: exactly zero, nothing arrives",
        probe_rows.gradient_map,
        probe_painters.heat_map,
        _maps,
    ),
    "gradient-distribution": Kind(
        "Sizes of the activation gradient",
        "same output gradient, without and with SURGE; zeros are in the legend",
        probe_rows.gradient_distribution,
        probe_painters.distribution,
        _paths,
    ),
    "gradient-cumulative": Kind(
        "Share of activation gradients below a size",
        "a curve begins at the share that is exactly zero",
        probe_rows.gradient_cumulative,
        probe_painters.cumulative,
        _paths,
    ),
    "weight-distribution": Kind(
        "Latent weights of one layer",
        "in its standard deviations; near zero: below 0.1 of them",
        probe_rows.weight_histogram,
        probe_painters.weights,
        _whole,
    ),
    "near-zero": Kind(
        "Weights near zero",
        "mean over the layers; mean over the seeds, band: lowest to highest",
        probe_rows.near_zero,
        _arms("% of the weights"),
        _whole,
    ),
    "weight-cosine": Kind(
        "Weight gradients of both paths",
        "their cosine, layer by layer",
        probe_rows.weight_cosine,
        _line("cosine", zero=True),
        _by("series", "arm"),
    ),
    "input-cosine": Kind(
        "Input gradients of both paths",
        "cos(g_b, g_a), layer by layer",
        probe_rows.input_cosine,
        _line("cosine", zero=True),
        _by("arm"),
    ),
    "scale": Kind(
        "The scale",
        "layer by layer; band: lowest to highest seed",
        probe_rows.scale,
        _line("scale", logarithmic=True),
        _by("arm"),
    ),
    "dose": Kind(
        "The delivered dose",
        "share of the main gradient that arrives below the clamp",
        probe_rows.dose,
        _line("% of |g_b|", logarithmic=True),
        _by("arm"),
    ),
    "norms": Kind(
        "Norms of both gradients",
        "on the recorded batch",
        probe_rows.norms,
        _line("norm", logarithmic=True),
        _by("series", "arm"),
    ),
    "clipped-share": Kind(
        "Inputs whose surrogate is exactly zero",
        "layer by layer",
        probe_rows.clipped_share,
        _line("% of the inputs"),
        _by("arm"),
    ),
    "optimal-scale": Kind(
        "The scale in use, and what would be best",
        "against a smooth reference network; mean over the seeds",
        probe_rows.optimal_scale,
        probe_painters.optima,
        _by("layer", "arm"),
    ),
    "premises": Kind(
        "What the corollary takes for granted",
        "layer by layer; band: lowest to highest seed",
        probe_rows.premises,
        _line("", zero=True),
        _by("series", "arm"),
    ),
    "reference-cosine": Kind(
        "Closeness to the smooth network's gradient",
        "cosine with g*, layer by layer",
        probe_rows.reference_cosine,
        _line("cosine", zero=True),
        _by("series", "arm"),
    ),
}
"""Every figure that stored runs can give, by the name of its files."""


@dataclass(frozen=True)
class Sheet:
    """One figure with its numbers, of one network or of all."""

    name: str
    network: str
    """Empty where all networks are shown."""
    rows: list[Row]


def sheets(runs: Sequence[StoredRun]) -> list[Sheet]:
    """Return every figure that these runs have numbers for."""
    runs = ordered(runs)
    recorded = networks([run for run in runs if run.records])
    made: list[Sheet] = []
    for name, kind in FIGURES.items():
        chosen = {"": list(runs)} if kind.across else recorded
        made += [Sheet(name, network, kind.rows(held)) for network, held in chosen.items()]
    return [sheet for sheet in made if FIGURES[sheet.name].split(sheet.rows)]


def panels(name: str, rows: Sequence[Row], most: int = MOST_PANELS) -> dict[str, Figure]:
    """Return every panel as a figure without title, by what is special to it."""
    kind = FIGURES[name]
    made = {}
    for title, mine in list(kind.split(rows).items())[:most]:
        with figures.look():
            figure, (axes,) = figures.new_figure(panel=(4.4, 3.1))
            kind.paint(axes, mine)
        made[title] = figure
    return made


def draw(name: str, rows: Sequence[Row], network: str = "") -> Figure:
    """Return all panels on one sheet, two beside each other, with the network in the title."""
    kind = FIGURES[name]
    groups = list(kind.split(rows).items())[: None if kind.across else MOST_PANELS]
    columns = 1 if len(groups) < 2 else 2
    over = kind.titled([title for title, _ in groups])
    titled = f"{kind.title}: {in_words(network)}" if network else over
    with figures.look():
        count = max(len(groups), 1)
        panel = (4.6, 3.3) if count > 1 else (6.4, 4.0)
        figure, places = figures.new_figure(-(-count // columns), columns, panel=panel)
        for axes, (title, mine) in zip(places, groups, strict=False):
            kind.paint(axes, mine)
            figures.panel_title(axes, title if count > 1 else titled, kind.note * (count == 1))
        figures.share_legend(figure, places[: len(groups)])
        for axes in places[len(groups) :]:
            axes.set_axis_off()
        if count > 1:
            figure.suptitle(f"{titled}\n{kind.note}", x=0.01, ha="left", fontsize=10)
    return figure


def write_all(runs: Sequence[StoredRun], folder: Path) -> list[Path]:
    """Write every figure, PNG and CSV; what belongs to one network into a folder for it."""
    written: list[Path] = []
    for sheet in sheets(runs):
        path = folder / sheet.network / f"{sheet.name}.png"
        drawn = draw(sheet.name, sheet.rows, sheet.network)
        written += figures.save(drawn, sheet.rows, path, dpi=120)
    return written
