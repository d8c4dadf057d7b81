"""What SURGE costs on GLUE: time of an epoch and peak memory of BiT, without it and with it.

Accuracies are not measured here but by the command, which stores them in results/glue.jsonl::

    surge reproduce glue --model BERT --seeds 0 --budget 9m \
        --rows mrpc-bit mrpc-bit-surge rte-bit rte-bit-surge

(teachers are trained first; call it again until nothing is missing). eta is chosen on a tenth of
the training set: ``surge train glue-mrpc-bit-surge --model BERT --teacher RUN --held-out --eta E``
with a teacher that was trained with ``--held-out`` as well. The table of costs, on a GPU::

    python benchmarks/glue.py --model BERT --data DATA --tasks mrpc rte

With ``--jobs`` every arm is built in a process of its own, so many at a time; then all are timed in
turns, so that a slow moment of the machine meets all of them. A line per task and arm is added to
results/glue_overhead.jsonl.
"""

import argparse
import json
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path

import torch

from surge.cli import main as surge_command
from surge.recipes import get_recipe
from surge.recipes.placing import placed
from surge.study.bench.elsewhere import built
from surge.study.bench.row_speed import WARM, RowSteps, timed
from surge.train.build import load_sets
from surge.train.run import git_state

ARMS = ("bit", "bit-surge", "bit-surge-tied", "bit-surge-lowrank")
BLOCK, ROUNDS = 40, 5
PATIENCE = 600.0
"""Seconds to wait for all arms to be built."""


def untrained_teacher(task: str, model: Path, data: Path, folder: Path) -> Path:
    """Return the run of a teacher that did one step: what it says does not change the cost."""
    out = folder / f"{task}-teacher"
    words = ["train", f"glue-{task}-teacher", "--model", str(model), "--data", str(data)]
    words += ["--limit", "32", "--epochs", "1", "--out", str(out), "--compiled", "False"]
    words += ["--captured", "False", "--results", str(folder / "unused")]
    if surge_command(words) != 0:
        raise SystemExit(f"the teacher of {task} could not be made")
    return out


def build(
    task: str, kind: str, model: Path, data: Path, device: torch.device, warm: int
) -> RowSteps:
    """Build one arm of a task, teacher included."""
    with tempfile.TemporaryDirectory() as folder:
        teacher = untrained_teacher(task, model, data, Path(folder))
        recipe = placed(get_recipe(f"glue-{task}-{kind}"), model=str(model), teacher=str(teacher))
        recipe = replace(recipe, train=replace(recipe.train, test_every=None))
        return RowSteps(recipe, load_sets(recipe.data, data), device, warm=warm)


def measure(
    tasks: list[str], model: Path, data: Path, device: torch.device, jobs: int
) -> Iterator[dict[str, object]]:
    """Yield one line per arm of every task; an arm that fails is named and left out."""
    names = {f"{task}-{kind}": (task, kind) for task in tasks for kind in ARMS}
    builders = {
        row: partial(build, *name, model, data, device, WARM) for row, name in names.items()
    }

    def report(row: str, words: str) -> None:
        print(f"{row} is left out:\n{words}", flush=True)

    with built(builders, jobs=jobs, patience=PATIENCE, on_failure=report) as arms:
        found = timed(arms, rounds=ROUNDS, block=BLOCK, on_failure=report)
    for row, (facts, seconds) in found.items():
        task, _ = names[row]
        recipe, base = get_recipe(f"glue-{row}"), f"{task}-{ARMS[0]}"
        if base not in found:
            continue
        plain, plain_seconds = found[base]
        peak, plain_peak = (known.peak_mib or 0.0 for known in (facts, plain))
        yield {
            "task": task,
            "row": row,
            "model": model.name,
            "batch": recipe.train.batch,
            "length": recipe.data.length,
            "precision": recipe.train.precision,
            "steps": facts.steps,
            "step_ms": round(1e3 * seconds, 4),
            "epoch_seconds": round(seconds * facts.per_epoch, 2),
            "time_ratio": round(seconds / plain_seconds, 4),
            "peak_mib": round(peak, 1),
            "memory_ratio": round(peak / plain_peak, 4) if plain_peak else None,
            "hardware": facts.hardware,
            "torch": str(torch.__version__),
        }


def main() -> None:
    """Measure the wanted tasks; print and store every line."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--model", type=Path, required=True, help="folder of a pretrained BERT")
    parser.add_argument("--data", type=Path, default=Path("data"), help="folder that holds glue/")
    parser.add_argument("--tasks", nargs="+", default=["cola", "sst2", "mrpc", "stsb", "rte"])
    parser.add_argument("--results", type=Path, default=Path("results"))
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--jobs", type=int, default=1, help="how many to build at a time")
    parser.add_argument("--commit", default=None)
    options = parser.parse_args()
    options.results.mkdir(exist_ok=True)
    model = options.model.resolve()
    print("| task | arm | step, ms | epoch, s | time | peak, MiB | memory |")
    print("| --- | --- | ---: | ---: | ---: | ---: | ---: |")
    device, commit = torch.device(options.device), options.commit or git_state()[0]
    for line in measure(options.tasks, model, options.data, device, options.jobs):
        with (options.results / "glue_overhead.jsonl").open("a") as file:
            file.write(json.dumps({**line, "commit": commit}) + "\n")
        cells = [str(line[k]) for k in ("task", "row", "step_ms", "epoch_seconds")]
        cells += [str(line[k]) for k in ("time_ratio", "peak_mib", "memory_ratio")]
        print(f"| {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()
