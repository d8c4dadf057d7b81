"""What a smaller file costs in accuracy: packed forms of one network, on real images.

    surge export RUN --rest fp32 --out a.surge
    surge export RUN --rest int8 --out b.surge
    python benchmarks/rest.py imagenette-onestage-bireal a.surge b.surge --data DATA

The first file is the one that others are compared with. With an int8 rest the first convolution
takes pixels as bytes, so its cost is in the figures too. One line per file is added to
results/rest.jsonl.
"""

import argparse
import json
from pathlib import Path

import numpy as np
import surge_runtime
import torch

from surge.data import ImageSet
from surge.recipes import get_recipe
from surge.train.build import load_sets
from surge.train.photos.loading import middle_of
from surge.train.run import git_state, hardware

BATCH = 250


def predictions(path: Path, images: ImageSet) -> np.ndarray:
    """Return the classes that the engine finds."""
    model = surge_runtime.load(path)
    pixels = images.images.permute(0, 2, 3, 1).numpy()
    parts = np.split(pixels, range(BATCH, len(pixels), BATCH))
    return np.concatenate([model.run(model.preprocess(part)).argmax(1) for part in parts])


def measure(recipe_name: str, paths: list[Path], data: Path) -> list[dict[str, object]]:
    """Return one line per file."""
    recipe = get_recipe(recipe_name)
    _, images = load_sets(recipe.data, data)
    assert isinstance(images, ImageSet)
    if recipe.data.size is not None:
        images = middle_of(images, recipe.data.size)
    found = [predictions(path, images) for path in paths]
    labels = images.labels.numpy()
    return [
        {
            "recipe": recipe_name,
            "file": path.name,
            "bytes": path.stat().st_size,
            "images": len(labels),
            "top1": round(100 * float((classes == labels).mean()), 3),
            "same": round(100 * float((classes == found[0]).mean()), 3),
            "hardware": hardware(torch.device("cpu")),
            "commit": git_state()[0],
        }
        for path, classes in zip(paths, found, strict=True)
    ]


def main() -> None:
    """Measure the files; print and store every line."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("recipe", help="whose test images to use")
    parser.add_argument("files", nargs="+", type=Path, help="packed forms of one network")
    parser.add_argument("--data", type=Path, default=Path("data"))
    parser.add_argument("--results", type=Path, default=Path("results"))
    chosen = parser.parse_args()
    chosen.results.mkdir(parents=True, exist_ok=True)
    with (chosen.results / "rest.jsonl").open("a") as file:
        for line in measure(chosen.recipe, chosen.files, chosen.data):
            print(json.dumps(line))
            file.write(json.dumps(line) + "\n")


if __name__ == "__main__":
    main()
