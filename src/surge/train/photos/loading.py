"""From a recipe on photographs to what it trains and tests on."""

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from surge.data import ImageSet, ResidentLoader
from surge.data.croploader import CropLoader, CropSettings, StreamLoader
from surge.data.crops import central_box, resample
from surge.data.folders import FileSet, find_tree, scan_tree
from surge.data.pictures import load_pictures
from surge.data.split import stratified_split
from surge.errors import ConfigError
from surge.recipes.recipe import DataSpec, Recipe
from surge.train.parts import Place

TREES = {
    "imagenet": ("imagenet", "ILSVRC2012"),
    "imagenette": ("imagenette96", "imagenette2", "imagenette2-320", "imagenette2-160"),
}
"""Names of the folder with train and val, below the data folder; that itself will do as well."""
TEST_BATCH = 500

PhotoSets = tuple[ImageSet, ImageSet] | tuple[FileSet, FileSet]


def load_photo_sets(spec: DataSpec, root: Path, workers: int | None = None) -> PhotoSets:
    """Return the photographs to train on and to test on, decoded if the recipe keeps them."""
    train, test = scan_tree(find_tree(root, TREES[spec.name]))
    if spec.held_out:
        kept, held = stratified_split(train.labels, 0.1)
        train, test = train.subset(kept), train.subset(held)
    if spec.limit is not None:
        train, test = train.first(spec.limit), test.first(spec.limit)
    if spec.stored is None:
        return train, test
    return load_pictures(train, spec.stored, workers), load_pictures(test, spec.stored, workers)


def make_photo_loaders(
    recipe: Recipe, sets: Sequence[Any], seed: int, place: Place
) -> tuple[ResidentLoader, ResidentLoader]:
    """Return both loaders; all arms of one seed see the same order and crops."""
    shown = check_photos(recipe, sets)
    kind: Any = CropLoader
    if isinstance(sets[0], FileSet):
        kind = partial(StreamLoader, workers=place.workers)
    train = kind(
        sets[0],
        shown,
        batch_size=min(recipe.train.batch, len(sets[0])),
        seed=seed,
        shuffle=True,
        drop_last=recipe.train.drop_last,
        **place.options(),
    )
    test = kind(
        sets[1],
        CropSettings(shown.size, train=False),
        batch_size=min(TEST_BATCH, len(sets[1])),
        **place.options(),
    )
    return train, test


def check_photos(recipe: Recipe, sets: Sequence[Any]) -> CropSettings:
    """Return how training images become input.

    Raises:
        ConfigError: an impossible crop, or a tree with another number of classes.
    """
    spec, classes = recipe.data, sets[0].classes
    wanted = recipe.model.options.get("classes", 1000)
    if len(classes) != wanted:
        raise ConfigError(
            f"{recipe.name} is for {wanted} classes, but the image tree has {len(classes)} class "
            "folders. Name another place with --data."
        )
    assert spec.size is not None
    return CropSettings(
        spec.size,
        train=spec.augment,
        scale=(spec.scale[0], spec.scale[-1]),
        lighting=spec.lighting,
        jitter=tuple(spec.jitter),
    )


def count_ranked(logits: Tensor, labels: Tensor) -> Tensor:
    """Return how many labels are among the five largest logits of their image."""
    best = logits.topk(min(5, logits.shape[1]), dim=1).indices
    return (best == labels[:, None]).any(dim=1).sum()


def middle_of(images: ImageSet, size: int) -> ImageSet:
    """Return what a test of ``size`` pixels looks at, as images of that size in whole levels."""
    start, extent = central_box(images.images.shape[-1], size)
    box = torch.tensor([[start, start, extent, extent]], dtype=torch.float32)
    parts = [
        resample(part, box.repeat(len(part), 1), torch.zeros(len(part)).bool(), size, whole=True)
        for part in torch.split(images.images, TEST_BATCH)
    ]
    pixels = [part.round().clamp(0, 255).to(torch.uint8) for part in parts]
    return replace(images, images=torch.cat(pixels))
