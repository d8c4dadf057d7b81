"""What SURGE costs on GLUE: time of an epoch and peak memory of BiT without, with, and tied.

Accuracies are not measured here but by the command, which stores them in results/glue.jsonl::

    surge reproduce glue --model BERT --seeds 0 --budget 9m \
        --rows mrpc-bit mrpc-bit-surge rte-bit rte-bit-surge

(teachers are trained first; call it again until nothing is missing). eta is chosen on a tenth of
the training set: ``surge train glue-mrpc-bit-surge --model BERT --teacher RUN --held-out --eta E``
with a teacher that was trained with ``--held-out`` as well. The table of costs, on a GPU::

    python benchmarks/glue.py --model BERT --data DATA --tasks mrpc rte

All arms of a task are built side by side and timed in turns, so that a slow moment of the machine
meets all of them. A line per task and arm is added to results/glue_overhead.jsonl.
"""

import argparse
import gc
import json
import statistics
import tempfile
import time
from dataclasses import replace
from pathlib import Path

import torch

from surge.cli import main as surge_command
from surge.recipes import get_recipe
from surge.recipes.glue import placed
from surge.train.build import Sets, load_sets
from surge.train.loop import LoopOptions, Trainer
from surge.train.run import RunFolder, git_state, hardware

ARMS = ("bit", "bit-surge", "bit-surge-tied")
WARM, BLOCK, ROUNDS = 12, 40, 5


def untrained_teacher(task: str, model: Path, data: Path, folder: Path) -> Path:
    """Return the run of a teacher that did one step: what it says does not change the cost."""
    out = folder / f"{task}-teacher"
    words = ["train", f"glue-{task}-teacher", "--model", str(model), "--data", str(data)]
    words += ["--limit", "32", "--epochs", "1", "--out", str(out), "--compiled", "False"]
    words += ["--captured", "False", "--results", str(folder / "unused")]
    if surge_command(words) != 0:
        raise SystemExit(f"the teacher of {task} could not be made")
    return out


class Arm:
    """One recipe, built and warm, and the memory that took."""

    def __init__(
        self, task: str, kind: str, model: Path, teacher: Path, sets: Sets, device: torch.device
    ) -> None:
        """Build, capture and do a few steps."""
        recipe = placed(get_recipe(f"glue-{task}-{kind}"), model=str(model), teacher=str(teacher))
        self.kind, self.device = kind, device
        gc.collect()
        cuda = device.type == "cuda"
        before = torch.cuda.memory_allocated(device) if cuda else 0
        if cuda:
            torch.cuda.reset_peak_memory_stats(device)
        folder = RunFolder(Path(tempfile.mkdtemp()))
        self.trainer = Trainer(
            replace(recipe, train=replace(recipe.train, test_every=None)),
            sets,
            seed=0,
            device=device,
            folder=folder,
            options=LoopOptions(save_every=1e9),
        )
        self.trainer.begin_epoch()
        whole = self.trainer.train_loader.batch_size
        self.batches = [b for b in self.trainer.batches() if len(b[0]) == whole][:BLOCK]
        self.steps(WARM)
        self.peak = (torch.cuda.max_memory_allocated(device) - before) / 2**20 if cuda else 0.0
        self.times: list[float] = []

    def steps(self, count: int) -> None:
        """Do some steps and wait for them."""
        for index in range(count):
            self.trainer.step(*self.batches[index % len(self.batches)])
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)

    def time(self) -> None:
        """Note the time of a step, from a block of them."""
        start = time.perf_counter()
        self.steps(BLOCK)
        self.times.append((time.perf_counter() - start) / BLOCK)

    @property
    def step_seconds(self) -> float:
        """The median over all rounds."""
        return statistics.median(self.times)


def measure(
    task: str, model: Path, data: Path, device: torch.device, commit: str | None
) -> list[dict[str, object]]:
    """Return one line per arm of a task."""
    with tempfile.TemporaryDirectory() as folder:
        teacher = untrained_teacher(task, model, data, Path(folder))
        base = get_recipe(f"glue-{task}-bit")
        sets = load_sets(placed(base, model=str(model), teacher=str(teacher)).data, data)
        arms = [Arm(task, kind, model, teacher, sets, device) for kind in ARMS]
    for _ in range(ROUNDS):
        for arm in arms:
            arm.time()
    plain = arms[0]
    return [
        {
            "task": task,
            "row": f"{task}-{arm.kind}",
            "model": model.name,
            "batch": base.train.batch,
            "length": base.data.length,
            "precision": base.train.precision,
            "steps": str(arm.trainer.mode),
            "step_ms": round(1e3 * arm.step_seconds, 4),
            "epoch_seconds": round(arm.step_seconds * len(arm.trainer.train_loader), 2),
            "time_ratio": round(arm.step_seconds / plain.step_seconds, 4),
            "peak_mib": round(arm.peak, 1),
            "memory_ratio": round(arm.peak / plain.peak, 4) if plain.peak else None,
            "hardware": hardware(device),
            "torch": str(torch.__version__),
            "commit": commit or git_state()[0],
        }
        for arm in arms
    ]


def main() -> None:
    """Measure the wanted tasks; print and store every line."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--model", type=Path, required=True, help="folder of a pretrained BERT")
    parser.add_argument("--data", type=Path, default=Path("data"), help="folder that holds glue/")
    parser.add_argument("--tasks", nargs="+", default=["cola", "sst2", "mrpc", "stsb", "rte"])
    parser.add_argument("--results", type=Path, default=Path("results"))
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--commit", default=None)
    options = parser.parse_args()
    options.results.mkdir(exist_ok=True)
    model = options.model.resolve()
    print("| task | arm | step, ms | epoch, s | time | peak, MiB | memory |")
    print("| --- | --- | ---: | ---: | ---: | ---: | ---: |")
    for task in options.tasks:
        device = torch.device(options.device)
        for line in measure(task, model, options.data, device, options.commit):
            with (options.results / "glue_overhead.jsonl").open("a") as file:
                file.write(json.dumps(line) + "\n")
            cells = [str(line[k]) for k in ("task", "row", "step_ms", "epoch_seconds")]
            cells += [str(line[k]) for k in ("time_ratio", "peak_mib", "memory_ratio")]
            print(f"| {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()
