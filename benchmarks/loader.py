"""Whether the data keeps up with the GPU: images a second of the loaders.

    python benchmarks/loader.py --data DATA                     # Imagenette, 224 px crops
    python benchmarks/loader.py --data DATA --table imagenet    # the real one

Timed are squares on the device, files through 1, 2, 4, ... workers, and files of the size that
ImageNet's have: some of the tree's, enlarged. One line per measurement is added to
results/loader.jsonl; what a GPU eats is in results/training.jsonl, and the table in
docs/distributed.md has both. ``--step`` also lets the step of a row eat what the loaders give.
"""

import argparse
import json
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Any

import torch
from PIL import Image

from surge.data.croploader import CropLoader, CropSettings, StreamLoader
from surge.data.folders import FileSet, find_tree, scan_tree
from surge.data.loader import ResidentLoader
from surge.data.pictures import load_pictures, read_picture, worker_count
from surge.recipes import get_recipe
from surge.recipes.recipe import Recipe
from surge.train.build import Sets
from surge.train.loop import LoopOptions, Trainer
from surge.train.photos.loading import TREES
from surge.train.run import RunFolder, git_state, hardware

USUAL = (375, 500)
"""Height and width of most photographs in ImageNet."""
ENLARGED = 256
"""How many files are enlarged."""
LONG = 100_000
"""Images of an epoch, which reads its files over and over: ImageNet's workers seldom start anew."""


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


def endless(loader: ResidentLoader) -> Iterator[object]:
    """Yield full batches epoch after epoch."""
    epoch = 0
    while True:
        yield from islice(loader.batches(epoch), max(1, len(loader) - 1))
        epoch += 1


def repeated(files: FileSet) -> FileSet:
    """Return the files over and over, as a long epoch."""
    times = -(-LONG // len(files))
    return replace(files, files=files.files * times, labels=files.labels.repeat(times))


def enlarged(files: FileSet, folder: Path) -> FileSet:
    """Return a few of the files in the size that ImageNet's usually have."""
    few = files.first(ENLARGED)
    names = []
    for index, name in enumerate(few.files):
        image = read_picture(few.root / name).resize(USUAL[::-1], Image.Resampling.BICUBIC)
        names.append(f"{index}.jpg")
        image.save(folder / names[-1], quality=95)
    return replace(few, root=folder, files=tuple(names))


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


def step_rate(recipe: Recipe, sets: Sets, given: argparse.Namespace, device: torch.device) -> float:
    """Return the images a second of training steps that are fed by a loader."""
    with tempfile.TemporaryDirectory() as folder:
        trainer = Trainer(
            recipe,
            sets,
            seed=0,
            device=device,
            folder=RunFolder(Path(folder)),
            options=LoopOptions(),
        )
        return rate(steps(trainer), given.batch, given.seconds, device)


def parsed(arguments: Sequence[str] | None) -> argparse.Namespace:
    """Return what the command line says."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--table", choices=sorted(TREES), default="imagenette")
    parser.add_argument("--row", default="onestage-reactnet-surge")
    parser.add_argument("--size", type=int, default=224)
    parser.add_argument("--batch", type=int, default=256)
    parser.add_argument("--seconds", type=float, default=2.0)
    parser.add_argument("--step", action="store_true", help="with training steps, compiled")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--results", type=Path, default=Path("results"))
    parser.add_argument("--commit")
    return parser.parse_args(arguments)


def measured(given: argparse.Namespace, device: torch.device) -> Iterator[tuple[str, int, float]]:
    """Yield (what, workers, images a second)."""
    files, _ = scan_tree(find_tree(given.data, TREES[given.table]))
    recipe = get_recipe(f"{given.table}-{given.row}")
    stored, most = recipe.data.stored, worker_count()
    crop = CropSettings(given.size, train=True, lighting=True)
    low = device.type == "cuda"
    options: dict[str, Any] = {
        "batch_size": min(given.batch, len(files)),
        "device": device,
        "shuffle": True,
        "dtype": torch.bfloat16 if low else torch.float32,
        "memory_format": torch.channels_last if low else torch.contiguous_format,
    }

    def alone(loader: ResidentLoader) -> float:
        found = rate(endless(loader), loader.batch_size, given.seconds, device)
        if isinstance(loader, StreamLoader):
            loader.close()  # else its workers would disturb the next measurement
        return found

    def fed(sets: Sets, kept: int | None) -> float:
        data = replace(recipe.data, size=given.size, stored=kept)
        chosen = replace(recipe, data=data, train=replace(recipe.train, batch=given.batch))
        return step_rate(chosen, sets, given, device)

    if stored is not None:
        kept = load_pictures(files, stored)
        yield "squares on the device", 0, alone(CropLoader(kept, crop, **options))
        if given.step:
            yield "squares, with the step", 0, fed((kept, kept), stored)
    workers, long = 1, repeated(files)
    while workers <= most:
        yield "files", workers, alone(StreamLoader(long, crop, workers=workers, **options))
        workers *= 2
    with tempfile.TemporaryDirectory() as folder:
        large = repeated(enlarged(files, Path(folder)))
        yield "files of 500x375", most, alone(StreamLoader(large, crop, workers=most, **options))
    if given.step:
        # What is tested on does not matter here.
        yield "files, with the step", most, fed((files, files.first(len(files.classes))), None)


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure and store."""
    given = parsed(arguments)
    device = torch.device(given.device)
    given.results.mkdir(parents=True, exist_ok=True)
    for what, workers, found in measured(given, device):
        line = Line(
            what,
            given.table,
            given.size,
            given.batch,
            workers,
            round(found, 1),
            f"{hardware(device)}, {worker_count()} workers at most",
            str(torch.__version__),
            given.commit or git_state()[0],
        )
        with (given.results / "loader.jsonl").open("a") as file:
            file.write(json.dumps(asdict(line)) + "\n")
        print(f"{what:24} {workers:3d} workers {found:10.0f} images/s", flush=True)


if __name__ == "__main__":
    main()
