"""The numbers behind the figures of a study, as rows: one function per figure, stored runs in."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from surge.study.figures import Row
from surge.study.stored_runs import StoredRun, arms, networks, number
from surge.train.probe.record import GRADIENT_BINS, WEIGHT_BINS

Rows = list[Row]
PREMISES = {
    "alignment": "alignment of bias and g_a",
    "paired_alignment": "the same, image by image",
    "bias_ratio": "relative bias",
    "noise_ratio": "noise ratio of g_a",
    "noise_correlation": "correlation of both noises",
    "corollary_eta": "eta that follows",
}


def digits(value: float) -> float:
    """Return a number rounded to seven digits: what a picture shows, equal on every machine."""
    return float(f"{value:.7g}")


def _layers(
    run: StoredRun, *, part: str = "layers"
) -> Iterator[tuple[dict[str, object], Mapping[str, Any]]]:
    """Yield (where, record) for every recorded epoch and layer."""
    for record in run.records:
        for depth, (layer, held) in enumerate(record.get(part, {}).items()):
            place = {"arm": run.arm, "seed": run.seed, "epoch": record["epoch"] + 1}
            yield {**place, "layer": layer, "depth": depth}, held


def _over_training(
    runs: Sequence[StoredRun], keys: Mapping[str, str], *, part: str = "layers"
) -> Rows:
    """One row per layer, epoch and series: the mean over the seeds of an arm, lowest, highest."""
    held: dict[tuple[Any, ...], list[float]] = {}
    for run in runs:
        if part == "theorem" and run.recipe.surge is not None and run.recipe.surge.noise:
            continue  # what it injects is not the g_a that the theorem is about
        for place, record in _layers(run, part=part):
            for key, series in keys.items():
                value = number(record.get(key))
                if value is not None:
                    where = (run.arm, series, place["layer"], place["depth"], place["epoch"])
                    held.setdefault(where, []).append(value)
    names = ("arm", "series", "layer", "depth", "epoch")
    return [
        {
            **dict(zip(names, where, strict=True)),
            "n": len(values),
            "low": digits(min(values)),
            "mean": digits(float(np.mean(values))),
            "high": digits(max(values)),
        }
        for where, values in sorted(
            held.items(), key=lambda pair: _place(pair[0], list(keys.values()))
        )
    ]


def _place(where: tuple[Any, ...], series: Sequence[str]) -> tuple[Any, ...]:
    """Sort by arm, series as listed, depth and epoch: a seed may lack some epochs."""
    arm, name, _, depth, epoch = where
    return arm, series.index(name), depth, epoch


def input_cosine(runs: Sequence[StoredRun]) -> Rows:
    """Cosine of g_b and g_a at the input of every layer."""
    return _over_training(runs, {"input_cosine": "cos(g_b, g_a)"})


def weight_cosine(runs: Sequence[StoredRun]) -> Rows:
    """Cosine of both paths' weight gradients, at the binarised and at the latent weight."""
    return _over_training(
        runs,
        {
            "weight_cosine_binary": "at the binarised weight",
            "weight_cosine_latent": "at the latent weight",
        },
    )


def scale(runs: Sequence[StoredRun]) -> Rows:
    """The scale of every layer."""
    return _over_training(runs, {"scale": "scale"})


def dose(runs: Sequence[StoredRun]) -> Rows:
    """The delivered dose of every layer, in percent."""
    rows = _over_training(runs, {"delivered": "delivered"})
    keys = ("low", "mean", "high")
    return [{**row, **{k: digits(100 * row[k]) for k in keys}} for row in rows]  # type: ignore[operator]


def norms(runs: Sequence[StoredRun]) -> Rows:
    """|g_b|, |g_a| and |scale g_a| of every layer."""
    rows = _over_training(runs, {"main_norm": "|g_b|", "auxiliary_norm": "|g_a|"})
    held: dict[tuple[Any, ...], list[float]] = {}
    for run in runs:
        for place, record in _layers(run):
            size, factor = number(record.get("auxiliary_norm")), number(record.get("scale"))
            if size is not None and factor is not None:
                where = (run.arm, place["layer"], place["depth"], place["epoch"])
                held.setdefault(where, []).append(abs(factor) * size)
    for (arm, layer, depth, epoch), values in held.items():
        place = {"arm": arm, "series": "|scale g_a|", "layer": layer, "depth": depth}
        ends = {"low": digits(min(values)), "mean": digits(float(np.mean(values)))}
        rows.append(
            {**place, "epoch": epoch, "n": len(values), **ends, "high": digits(max(values))}
        )
    return rows


def clipped_share(runs: Sequence[StoredRun]) -> Rows:
    """The share of inputs whose surrogate is exactly zero, in percent."""
    rows = _over_training(runs, {"clipped": "clipped"})
    keys = ("low", "mean", "high")
    return [{**row, **{k: digits(100 * row[k]) for k in keys}} for row in rows]  # type: ignore[operator]


def flip_rate(runs: Sequence[StoredRun]) -> Rows:
    """The share of weight bits that flip in an epoch, in percent, of the whole network."""
    return _curves(runs, lambda run: "flips")


def accuracy(runs: Sequence[StoredRun]) -> Rows:
    """The metric of the recipe after every tested epoch."""
    return _curves(runs, lambda run: run.metric)


def near_zero(runs: Sequence[StoredRun]) -> Rows:
    """The share of weights near zero, in percent, mean over the layers of a run."""
    rows: Rows = []
    for arm, held in arms(runs).items():
        by_epoch: dict[int, list[float]] = {}
        for run in held:
            for record in run.records:
                shares = [100 * layer["near_zero"] for layer in record["layers"].values()]
                if shares:
                    by_epoch.setdefault(record["epoch"] + 1, []).append(float(np.mean(shares)))
        rows += [_point(arm, epoch, values) for epoch, values in sorted(by_epoch.items())]
    return rows


def _curves(runs: Sequence[StoredRun], key: Callable[[StoredRun], str]) -> Rows:
    """Mean and range over the seeds of an arm, at the epochs that all who came so far have.

    Runs may test at different epochs: a mean over now these, now those seeds would jump.
    """
    rows: Rows = []
    for (network, arm), held in _compared(runs).items():
        by_epoch: dict[int, list[float]] = {}
        ends = []
        for run in held:
            found = {int(row["epoch"]) + 1: number(row.get(key(run))) for row in run.epochs}
            known = {epoch: value for epoch, value in found.items() if value is not None}
            ends.append(max(known, default=0))
            for epoch, value in known.items():
                by_epoch.setdefault(epoch, []).append(value)
        if any(any(values) for values in by_epoch.values()):
            rows += [
                {"network": network, **_point(arm, epoch, values)}
                for epoch, values in sorted(by_epoch.items())
                if len(values) == sum(end >= epoch for end in ends)
            ]
    return rows


def telling(runs: Sequence[StoredRun]) -> dict[str, list[StoredRun]]:
    """Return the runs by network; of several networks those with something to compare."""
    found = networks(runs)
    return {name: held for name, held in found.items() if len(arms(held)) > 1} or found


def _compared(runs: Sequence[StoredRun]) -> dict[tuple[str, str], list[StoredRun]]:
    """Return the runs that figures over all networks show, by network and arm."""
    found = telling(runs)
    return {(name, arm): mine for name, held in found.items() for arm, mine in arms(held).items()}


def _point(arm: str, epoch: int, values: Sequence[float]) -> Row:
    ends = {"low": digits(min(values)), "mean": digits(float(np.mean(values)))}
    return {"arm": arm, "epoch": epoch, "n": len(values), **ends, "high": digits(max(values))}


def _last_record(run: StoredRun) -> Mapping[str, Any] | None:
    return run.records[-1] if run.records else None


def gradient_histogram(runs: Sequence[StoredRun]) -> Rows:
    """Share of gradient values per bin of log10|g|, in the first run of every arm.

    Both curves are for the same G: *without* is g_b, *with* g_b + scale g_a. ``zero`` holds the
    share of values that are exactly zero, and ``cumulative`` the share that is smaller than the
    upper end of the bin, zeros included.
    """
    rows: Rows = []
    low, high, bins = GRADIENT_BINS
    edges = np.linspace(low, high, bins + 1)
    for arm, held in arms(runs).items():
        record = _last_record(held[0])
        if record is None:
            continue
        for layer, found in record["layers"].items():
            for key, series in (("gradient_main", "without"), ("gradient_total", "with")):
                if key not in found:
                    continue
                counts = np.array(found[key]["counts"], dtype=float)
                zeros = found[key]["zeros"]
                total = counts.sum() + zeros
                place = {"arm": arm, "layer": layer, "epoch": record["epoch"] + 1, "series": series}
                below = zeros + np.cumsum(counts)
                for index in np.flatnonzero(counts):
                    rows.append(
                        {
                            **place,
                            "zero": digits(zeros / total),
                            "log10_low": digits(edges[index]),
                            "log10_high": digits(edges[index + 1]),
                            "share": digits(counts[index] / total),
                            "cumulative": digits(below[index] / total),
                        }
                    )
    return rows


def gradient_distribution(runs: Sequence[StoredRun]) -> Rows:
    """The share of values in every bin."""
    return [_without(row, "cumulative") for row in gradient_histogram(runs)]


def gradient_cumulative(runs: Sequence[StoredRun]) -> Rows:
    """The share of values below the upper end of every bin."""
    return [_without(row, "share", "log10_low") for row in gradient_histogram(runs)]


def _without(row: Row, *keys: str) -> Row:
    return {key: value for key, value in row.items() if key not in keys}


def weight_histogram(runs: Sequence[StoredRun]) -> Rows:
    """Density of the latent weights of one layer, in its standard deviations, all seeds together.

    The layer is the one in the middle of the network, after the last recorded epoch.
    """
    rows: Rows = []
    low, high, bins = WEIGHT_BINS
    width = (high - low) / bins
    for arm, held in arms(runs).items():
        records = [record for run in held if (record := _last_record(run)) and record["layers"]]
        if not records:
            continue
        names = list(records[0]["layers"])
        layer = records[0].get("mapped") or names[len(names) // 2]
        found = [record["layers"][layer] for record in records if layer in record["layers"]]
        counts = np.sum([one["weights"] for one in found], axis=0)
        near = float(np.mean([one["near_zero"] for one in found]))
        place = {"arm": arm, "layer": layer, "n": len(found), "near_zero": digits(near)}
        for index in range(bins):
            share = counts[index] / counts.sum() / width
            rows.append(
                {**place, "weight": digits(low + (index + 0.5) * width), "density": digits(share)}
            )
    return rows


def gradient_map(runs: Sequence[StoredRun]) -> Rows:
    """One sample's activation gradient in one layer, without and with SURGE: one row per value."""
    for run in runs:
        with_surge = run.maps and run.recipe.surge is not None
        if not with_surge:
            continue
        epoch = max(run.maps)
        arrays = run.maps[epoch]
        record = next((r for r in run.records if r["epoch"] == epoch), {})
        place = {"arm": run.arm, "layer": record.get("mapped", "?"), "epoch": epoch + 1}
        return [
            {
                **place,
                "channel": int(channel),
                "position": int(position),
                "clipped": int(clipped),
                "without": digits(float(arrays["without"][channel, position])),
                "with": digits(float(arrays["with"][channel, position])),
            }
            for (channel, position), clipped in np.ndenumerate(arrays["clipped"])
        ]
    return []


def optimal_scale(runs: Sequence[StoredRun]) -> Rows:
    """The scale in use beside the three measured optima, per layer."""
    keys = {"scale": "AGS", "closed_form": "closed form", "corrected": "corrected"}
    return _over_training(runs, {**keys, "paired": "paired"}, part="theorem")


def premises(runs: Sequence[StoredRun]) -> Rows:
    """What the corollary takes for granted, per layer."""
    return _over_training(runs, PREMISES, part="theorem")


def reference_cosine(runs: Sequence[StoredRun]) -> Rows:
    """Cosine with the smooth network's gradient, of g_b and of g_b + scale g_a."""
    keys = {"cosine_main": "g_b", "cosine_total": "g_b + scale g_a"}
    return _over_training(runs, keys, part="theorem")


def final_metric(runs: Sequence[StoredRun]) -> Rows:
    """The metric after the last epoch, one row per finished run."""
    return [
        {"network": network, "arm": arm, "seed": run.seed, "value": digits(run.last)}
        for (network, arm), held in _compared(runs).items()
        for run in held
        if run.finished and run.last is not None
    ]
