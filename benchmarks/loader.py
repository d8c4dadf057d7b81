"""Whether the data keeps up with the GPU: images a second of the loaders and of training steps.

    python benchmarks/loader.py --data DATA                     # Imagenette, 224 px crops
    python benchmarks/loader.py --data DATA --table imagenet    # the real one

Loaders alone are timed first: squares on the device, and files through 1, 2, 4, ... workers. Then
the step of a row eats what they give. One line per measurement is added to results/loader.jsonl.
"""

import argparse
import json
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, replace
from itertools import islice
from pathlib import Path

import torch

from surge.data.croploader import CropLoader, CropSettings, StreamLoader
from surge.data.folders import FileSet, find_tree, scan_tree
from surge.data.loader import ResidentLoader
from surge.data.pictures import load_pictures, worker_count
from surge.recipes import get_recipe
from surge.train.loop import LoopOptions, Trainer
from surge.train.photos import TREES
from surge.train.run import RunFolder, git_state, hardware


@dataclass(frozen=True)
class Line:
    """One measurement."""

    what: str
    table: str
    size: int
    batch: int
    workers: int
    images_per_s: float
    hardware: str
    torch: str
    commit: str | None


def rate(batches: Iterator[object], size: int, seconds: float, device: torch.device) -> float:
    """Return images a second over about so many seconds, after two batches."""

    def wait() -> None:
        if device.type == "cuda":
            torch.cuda.synchronize(device)

    list(islice(batches, 2))
    wait()
    start, count = time.monotonic(), 0
    for _ in batches:
        count += size
        if time.monotonic() - start > seconds:
            break
    wait()
    return count / (time.monotonic() - start)


def endless(loader: ResidentLoader, make: Callable[[int], Iterator[object]]) -> Iterator[object]:
    """Yield full batches epoch after epoch."""
    epoch = 0
    while True:
        yield from islice(make(epoch), max(1, len(loader) - 1))
        epoch += 1


def steps(trainer: Trainer) -> Iterator[object]:
    """Yield after every training step."""
    full = trainer.train_loader.batch_size
    while True:
        trainer.begin_epoch()
        for part, weight in trainer.batches():
            if len(part) == full:
                trainer.step(part, weight)
                yield part
        trainer.epoch = (trainer.epoch + 1) % trainer.recipe.train.epochs


def main() -> None:
    """Measure and store."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--table", choices=sorted(TREES), default="imagenette")
    parser.add_argument("--row", default="onestage-reactnet-surge")
    parser.add_argument("--size", type=int, default=224)
    parser.add_argument("--batch", type=int, default=256)
    parser.add_argument("--seconds", type=float, default=8.0)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--results", type=Path, default=Path("results"))
    parser.add_argument("--commit")
    given = parser.parse_args()
    device = torch.device(given.device)
    files, _ = scan_tree(find_tree(given.data, TREES[given.table]))
    recipe = get_recipe(f"{given.table}-{given.row}")
    low = device.type == "cuda"
    options = {
        "batch_size": given.batch,
        "device": device,
        "shuffle": True,
        "dtype": torch.bfloat16 if low else torch.float32,
        "memory_format": torch.channels_last if low else torch.contiguous_format,
    }
    crop = CropSettings(given.size, train=True, lighting=True)
    given.results.mkdir(parents=True, exist_ok=True)

    def note(what: str, workers: int, found: float) -> None:
        line = Line(
            what,
            given.table,
            given.size,
            given.batch,
            workers,
            round(found, 1),
            hardware(device),
            torch.__version__,
            given.commit or git_state()[0],
        )
        with (given.results / "loader.jsonl").open("a") as file:
            file.write(json.dumps(asdict(line)) + "\n")
        print(f"{what:32} {workers:3d} workers {found:10.0f} images/s", flush=True)

    def step_rate(sets: tuple[object, object], stored: int | None) -> float:
        data = replace(recipe.data, size=given.size, stored=stored)
        chosen = replace(recipe, data=data, train=replace(recipe.train, batch=given.batch))
        with tempfile.TemporaryDirectory() as folder:
            trainer = Trainer(
                chosen,
                sets,  # type: ignore[arg-type]
                seed=0,
                device=device,
                folder=RunFolder(Path(folder)),
                options=LoopOptions(),
            )
            return rate(steps(trainer), given.batch, given.seconds, device)

    stored = recipe.data.stored
    if stored is not None:
        kept = load_pictures(files, stored)
        loader: ResidentLoader = CropLoader(kept, crop, **options)
        note("squares on the device", 0, measure(loader, given, device))
        note("squares, with the step", 0, step_rate((kept, kept), stored))
    workers, most = 1, worker_count()
    while workers <= most:
        loader = StreamLoader(files, crop, workers=workers, **options)
        note("files", workers, measure(loader, given, device))
        workers *= 2
    note("files, with the step", most, step_rate((files, small(files)), None))


def measure(loader: ResidentLoader, given: argparse.Namespace, device: torch.device) -> float:
    """Return the images a second of a loader alone."""
    batches = endless(loader, loader.batches)
    return rate(batches, given.batch, given.seconds, device)


def small(files: FileSet) -> FileSet:
    """Return a few files: what is tested on does not matter here."""
    return files.first(len(files.classes))


if __name__ == "__main__":
    main()
