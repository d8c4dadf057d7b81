"""PASCAL VOC: a Faster R-CNN on a ResNet-18 with a feature pyramid, in two stages.

``backbone-<row>`` makes the backbone binary and begins with the float detector; ``<row>`` makes the
pyramid and the proposal head binary too, and begins with its first stage. The schedule is that of
IDa-Det's code: 12 epochs of three passes, images within 1000x600 pixels, batches of 4 (float: 8).
The teacher is our float detector on a ResNet-18; IDa-Det's own stands on a ResNet-101.

``--short`` is the form for the 3,467 images of 300 pixels of our split: see :func:`shortened`.
"""

from dataclasses import replace
from pathlib import Path
from typing import Any

from surge.compensation.options import PathOptions
from surge.errors import ConfigError
from surge.recipes.recipe import (
    DataSpec,
    DistillSpec,
    MethodSpec,
    ModelSpec,
    Recipe,
    TrainSpec,
    with_surge,
)

TEACHER = "voc-float"

STUDENT = TrainSpec(
    epochs=12,
    batch=4,
    lr=0.004,
    weight_decay=1e-4,
    schedule="detector",
    warmup=0,
    warmup_steps=200,
    clip=35.0,
)
FLOAT = replace(STUDENT, batch=8, lr=0.01)
FULL = DataSpec("voc", size=1000, repeat=3, sizes=(1.5, 1.0, 2 / 3))
SURGE = PathOptions(eta=1e-3, auxiliary="copied")
"""The paper's share for VOC. Weights are trained before, so auxiliary ones start as copies."""
LOSSES = 5.0
"""Weight of the four losses of a 1-bit detector."""

PAPER = {
    "float": 78.8,
    "dorefa-w4a4": 73.3,
    "reactnet": 69.6,
    "lws": 73.2,
    "ida": 76.5,
    "ida-surge": 77.0,
}
"""Mean average precision that the paper prints, in percent."""
PAPER_COSTS = {"float": (96.40, 112.88), "dorefa-w4a4": (27.15, 21.59)}
"""Operations in 10^9 and megabytes that the paper prints."""
PAPER_BINARY = (18.49, 16.61)
"""Those of all its 1-bit rows."""

METHODS = {
    # Pyramid and heads have no norm that could shrink weights which fill [-1, 1].
    "dorefa-w4a4": (
        MethodSpec("dorefa", {"weight_bits": 4, "input_bits": 4, "keeps_size": True}),
        None,
    ),
    "reactnet": (MethodSpec("reactnet"), None),
    "lws": (MethodSpec("lws"), DistillSpec(logits=0.0, hidden=1.0, detector="lws")),
    "ida": (MethodSpec("ida"), DistillSpec(logits=0.0, hidden=0.5, detector="ida")),
}


FIRST = "backbone-"
"""What the names of first stages begin with."""


def paper_costs(row: str) -> tuple[float, float] | None:
    """Return the operations and megabytes that the paper prints for a row; a stage has none."""
    return None if row.startswith(FIRST) else PAPER_COSTS.get(row, PAPER_BINARY)


def _row(row: str, scope: str, train: TrainSpec, **parts: Any) -> Recipe:
    options: dict[str, Any] = {"backbone": ""}
    if scope:
        options = {"binary": scope, "losses": LOSSES, "start": "", **options}
    if scope == "everything":
        del options["backbone"]  # which its first stage has
    model = ModelSpec("reactnet_detector" if scope else "float_detector", options)
    return Recipe("voc", row, model, FULL, train, metric="map", paper=PAPER.get(row), **parts)


def _stages(row: str) -> list[Recipe]:
    method, distill = METHODS[row]
    return [
        _row(f"{FIRST}{row}", "backbone", STUDENT, method=method, distill=distill),
        _row(row, "everything", STUDENT, method=method, distill=distill),
    ]


def _surged(recipe: Recipe) -> Recipe:
    surged = with_surge(recipe)
    return replace(surged, surge=SURGE, paper=PAPER.get(surged.row))


def _all() -> list[Recipe]:
    rows = [_row("float", "", FLOAT)]
    for row in METHODS:
        rows += _stages(row)
    return [*rows, *map(_surged, _stages("ida"))]


def shortened(recipe: Recipe) -> Recipe:
    """Return a row for a few thousand small images: one pass an epoch, fewer, larger batches.

    Images come within 512x307 pixels, in one size; batches are 16. Float detectors train 12 epochs
    with twice the learning rate, either stage of a quantised one 6 with half of it: without a
    pretrained 1-bit backbone to begin with, larger steps do not settle. Tests follow every third
    epoch.
    """
    if recipe.table != "voc":
        raise ConfigError(f"{recipe.name} has no short form (--short); only rows of voc have one.")
    if recipe.method is None:
        train = replace(recipe.train, epochs=12, batch=16, lr=2 * recipe.train.lr)
    else:
        train = replace(recipe.train, epochs=6, batch=16, lr=recipe.train.lr / 2)
    train = replace(train, test_epochs=3)
    data = replace(recipe.data, size=512, repeat=1, sizes=(1.0,))
    return replace(recipe, data=data, train=train, paper=None)


def start_of(recipe: Recipe) -> str:
    """Return the name of the recipe that another one begins with."""
    if recipe.model.options.get("binary") == "backbone":
        return TEACHER
    return f"{recipe.table}-{FIRST}{recipe.row}"


def with_backbone(recipe: Recipe, backbone: str | None) -> Recipe:
    """Return the recipe with a pretrained backbone, which then is frozen in part."""
    if backbone is None:
        return recipe
    if "backbone" not in recipe.model.options:
        raise ConfigError(
            f"{recipe.name} takes no --backbone; only voc-float and rows of voc-{FIRST}* do."
        )
    place = str(Path(backbone).expanduser().resolve())
    options = {**recipe.model.options, "backbone": place}
    return replace(recipe, model=replace(recipe.model, options=options))


RECIPES = tuple(_all())
