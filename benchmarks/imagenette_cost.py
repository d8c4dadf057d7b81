"""Accuracies for the table of costs: ten epochs of Imagenette at 224 pixels, 256 images a step.

    python benchmarks/imagenette_cost.py --data DATA

The recipes are Imagenette's, with another size and batch, so their results are stored apart from
its table. The last run is SURGE as the paper prints it (``benchmarks/literal.py``), eager: it
begins with the weights of the SURGE run, the auxiliary ones included. Stored runs are left out.
"""

import argparse
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import torch

from surge.recipes import get_recipe, overridden
from surge.recipes.recipe import Recipe
from surge.study import results
from surge.study.bench.cost_table import CHANGES, ROWS, accuracies
from surge.study.bench.training_speed import literal
from surge.train.build import Sets, build_network, load_sets
from surge.train.loop import LoopOptions, Outcome, Trainer
from surge.train.run import RunFolder, describe_environment


def compensate_trainer_(trainer: Trainer, surged: Recipe) -> None:
    """Give the network of a plain run the paper's paths, with the weights that ours begin with."""
    assert surged.surge is not None
    example = trainer.task.example(surged, trainer.sets[0])
    _, compensation = build_network(surged, trainer.seed, example)
    assert compensation is not None
    model, optimizer = trainer.parts.model, trainer.parts.optimizer
    literal().compensate_literally_(model, lambda _: optimizer, eta=surged.surge.eta)
    weights = []
    for name, path in compensation.paths.items():
        weight = model.get_submodule(name).auxiliary.weight
        weight.data.copy_(path.weight.data)
        weights.append(weight)
    # The first group is the decayed one, where kernels belong.
    optimizer.add_param_group({**optimizer.param_groups[0], "params": weights})


def train(
    row: str, form: str, sets: Sets, given: argparse.Namespace, device: torch.device
) -> tuple[Recipe, Outcome]:
    """Train one row in one process, and return its recipe and how it ended."""
    recipe = wanted(row, given)
    plain = replace(recipe, surge=None) if form else recipe
    compiled, captured = (False, False) if form else (given.compiled, None)
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "checkpoints").mkdir()
        trainer = Trainer(
            plain,
            sets,
            seed=given.seed,
            device=device,
            folder=RunFolder(Path(folder)),
            options=LoopOptions(compiled=compiled, captured=captured),
        )
        if form:
            compensate_trainer_(trainer, recipe)
        return recipe, trainer.run()


def wanted(row: str, given: argparse.Namespace) -> Recipe:
    """Return the recipe of a row, in this table's form."""
    recipe = overridden(get_recipe(f"imagenette-{row}"), dict(CHANGES))
    return recipe if given.limit is None else overridden(recipe, {"limit": given.limit})


def main(arguments: Sequence[str] | None = None) -> None:
    """Train what is missing and store it."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--limit", type=int, help="only so many images (for a check)")
    parser.add_argument("--compiled", action="store_true", help="longer to begin, faster then")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--results", type=Path, default=Path("results"))
    parser.add_argument("--commit")
    given = parser.parse_args(arguments)
    device = torch.device(given.device)
    known = accuracies(given.results)
    missing = [r for r in ROWS if given.seed not in known.get((r.row, r.form), {})]
    if not missing:
        return
    sets = load_sets(wanted(missing[0].row, given).data, given.data)
    for row in missing:
        recipe, outcome = train(row.row, row.form, sets, given, device)
        command = " ".join(["benchmarks/imagenette_cost.py", *(arguments or sys.argv[1:])])
        facts = describe_environment(device, given.seed, commit=given.commit, command=command)
        changes = {**CHANGES, **({"form": row.form} if row.form else {})}
        result = results.make_result(recipe, changes, given.seed, outcome, dict(facts))
        results.append(given.results, result)
        for metric, (last, best) in outcome.others.items():
            other = replace(result, metric=metric, last=round(last, 4), best=round(best, 4))
            results.append(given.results, other)
        print(f"{row.name:32} top-1 {outcome.last:6.2f}  {outcome.seconds:6.1f} s", flush=True)


if __name__ == "__main__":
    main()
