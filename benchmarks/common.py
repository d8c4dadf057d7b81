"""Speed and memory of every row of the table ``common``, without training it::

    python benchmarks/common.py

Accuracies come from ``surge reproduce common``; its runs may share a GPU, so their seconds are no
speeds. Here each row is built in a process of its own, a group of rows at a time, on random images
of CIFAR's size; when all of a group are compiled, captured and warm, blocks of their steps are
timed in turns, and nothing else runs. Steps are those of the first epoch. A line per row is added
to results/common_speed.jsonl, from which `make tables` takes two columns of docs/results.md.
"""

import argparse
import os
import sys
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

import torch

from surge.data import IMAGENET, ImageSet
from surge.recipes import get_recipe, list_recipes
from surge.recipes.recipe import Recipe
from surge.study.bench import row_speed
from surge.study.bench.elsewhere import built
from surge.study.bench.row_speed import WARM, RowSpeed, RowSteps, timed
from surge.train.run import git_state


def random_images(count: int) -> ImageSet:
    """Return images of CIFAR's size; what is on them changes no speed."""
    generator = torch.Generator().manual_seed(0)
    images = torch.randint(0, 256, (count, 3, 32, 32), generator=generator, dtype=torch.uint8)
    labels = torch.randint(0, 10, (count,), generator=generator)
    return ImageSet(images, labels, tuple("0123456789"), IMAGENET)


def build(recipe: Recipe, device: str, images: int, warm: int) -> RowSteps:
    """Build a row on random images."""
    sets = (random_images(images), random_images(max(1, images // 5)))
    return RowSteps(recipe, sets, torch.device(device), warm=warm)


def grouped(recipes: Sequence[Recipe], size: int) -> list[list[Recipe]]:
    """Return groups of about that size; rows of one method stay together."""
    pairs: dict[str, list[Recipe]] = {}
    for recipe in recipes:
        pairs.setdefault(recipe.method.name if recipe.method else "", []).append(recipe)
    groups: list[list[Recipe]] = []
    for pair in pairs.values():
        if not groups or len(groups[-1]) + len(pair) > size:
            groups.append([])
        groups[-1] += pair
    return groups


def measure(
    recipes: Sequence[Recipe], options: argparse.Namespace, failures: dict[str, str]
) -> list[RowSpeed]:
    """Build a group of rows side by side, then time them in turns."""
    size = options.device, options.images, WARM
    builders = {recipe.row: partial(build, recipe, *size) for recipe in recipes}
    commit, fail = options.commit or git_state()[0], failures.__setitem__
    jobs = max(2, len(builders))  # one would be built here, where memory is shared
    with built(builders, jobs=jobs, patience=options.patience, on_failure=fail) as rows:
        found = timed(rows, rounds=options.rounds, block=options.block, on_failure=fail)
    return [
        RowSpeed(
            row=recipe.row,
            method=recipe.method.name if recipe.method else "float",
            surge=recipe.surge is not None,
            batch=facts.batch,
            precision=facts.precision,
            steps=facts.steps,
            step_ms=round(1e3 * seconds, 4),
            images_per_s=round(facts.batch / seconds, 1),
            peak_mib=None if facts.peak_mib is None else round(facts.peak_mib, 1),
            hardware=facts.hardware,
            torch=str(torch.__version__),
            commit=commit,
        )
        for recipe in recipes
        if recipe.row in found
        for facts, seconds in [found[recipe.row]]
    ]


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure the wanted rows; print and store every line; name what failed."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--rows", nargs="+", help="rows by name; by default all of the table")
    parser.add_argument("--missing", action="store_true", help="leave out rows that are stored")
    parser.add_argument("--jobs", type=int, default=12, help="rows of one group")
    parser.add_argument("--rounds", type=int, default=5, help="turns of every row")
    parser.add_argument("--block", type=int, default=100, help="steps of a turn")
    parser.add_argument("--batch", type=int, help="images per step; by default the recipe's")
    parser.add_argument("--images", type=int, default=50_000, help="size of the training set")
    parser.add_argument("--patience", type=float, default=900, help="seconds to build a group")
    parser.add_argument("--results", type=Path, default=Path("results"))
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--commit", default=None)
    options = parser.parse_args(arguments)
    names = [f"common-{row}" for row in options.rows] if options.rows else list_recipes("common")
    known = row_speed.read(options.results) if options.missing else {}
    recipes = [recipe for recipe in map(get_recipe, names) if recipe.row not in known]
    if options.batch:
        recipes = [replace(r, train=replace(r.train, batch=options.batch)) for r in recipes]
    # As many processes as rows share the cores.
    for name in ("OMP_NUM_THREADS", "TORCHINDUCTOR_COMPILE_THREADS"):
        os.environ.setdefault(name, "1")
    failures: dict[str, str] = {}
    print(f"| row | step, ms | images/s | peak, MiB | steps |\n| --- |{' ---: |' * 3} --- |")
    for group in grouped(recipes, options.jobs):
        for line in measure(group, options, failures):
            row_speed.append(options.results, line)
            peak = "-" if line.peak_mib is None else f"{line.peak_mib:,.0f}"
            cells = (line.row, f"{line.step_ms:.3f}", f"{line.images_per_s:,.0f}", peak, line.steps)
            print(f"| {' | '.join(cells)} |", flush=True)
    for name, words in failures.items():
        print(f"{name} was not measured: {words.strip().splitlines()[-1]}", file=sys.stderr)
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
