"""ImageNet in one and in two stages, and the same rows on Imagenette, short.

Every row has its authors' schedule where one is published. Rows without one (DoReFa, TBN, BNN,
XNOR) use that of Bi-Real Net, on whose network they stand; BONN's is that of its ablations. SURGE's
own row is ReActNet's layer and network with RBONN's schedule, which is what the paper's text says;
RBONN with SURGE stands beside it.

Imagenette are ten classes of ImageNet, kept as squares of 96 pixels. Crops are resampled to 128
(``--size``), so most are enlarged; batches are 128, runs 100 epochs; SGD's learning rate shrinks
with the batch, Adam's stays. No figure of the paper belongs to that table.
"""

from dataclasses import replace
from typing import Any

from surge.compensation.options import PathOptions
from surge.recipes.recipe import (
    DataSpec,
    DistillSpec,
    MethodSpec,
    ModelSpec,
    Recipe,
    TrainSpec,
    with_surge,
)
from surge.recipes.variants import options_of

ETA = 1e-3
"""The paper's share for ImageNet."""

RBONN = TrainSpec(
    epochs=200,
    batch=512,
    optimizer="adam",
    lr=5e-4,
    weight_decay=1e-5,
    decayed="kernels",
    warmup=0,
)
BIREAL = TrainSpec(
    epochs=256,
    batch=512,
    optimizer="adam",
    lr=1e-3,
    weight_decay=0.0,
    schedule="linear",
    warmup=0,
    label_smoothing=0.1,
)
IRNET = TrainSpec(
    epochs=100,
    batch=2048,
    lr=0.8,
    nesterov=True,
    weight_decay=1e-5,
    schedule="drops",
    warmup=4,
    sync_norm=True,
)
BONN = TrainSpec(epochs=70, batch=512, weight_decay=1e-4, warmup=0)
RBNN = TrainSpec(epochs=120, batch=512, weight_decay=1e-4, warmup=0)
RECU = TrainSpec(epochs=200, batch=512, weight_decay=1e-4, decayed="conv_fc")
FLOAT = TrainSpec(epochs=90, batch=256, weight_decay=1e-4)
STAGE = TrainSpec(
    epochs=256,
    batch=256,
    optimizer="adam",
    lr=5e-4,
    weight_decay=1e-5,
    decayed="kernels",
    schedule="linear",
    warmup=0,
)
SECOND = replace(STAGE, weight_decay=0.0)
SECOND_RBONN = replace(SECOND, batch=512, lr=1e-3)
SECOND_RECU = replace(SECOND_RBONN, schedule="cosine", warmup=5)

DISTRIBUTION = DistillSpec(hidden=0.0)
"""The teacher's outputs alone."""

PAPER = {
    "resnet18-float": 69.6,
    "onestage-dorefa-w1a4": 59.2,
    "onestage-tbn": 55.6,
    "onestage-bnn": 42.2,
    "onestage-xnor": 51.2,
    "onestage-bireal": 56.4,
    "onestage-irnet": 58.1,
    "onestage-bonn": 59.3,
    "onestage-rbnn": 59.6,
    "onestage-recu": 61.0,
    "onestage-rbonn": 61.4,
    "onestage-reactnet-surge": 62.0,
    "twostage-reactnet": 65.9,
    "twostage-recu": 66.4,
    "twostage-rbonn": 66.5,
    "twostage-reactnet-surge": 66.7,
}
"""Top-1 accuracy that the paper prints, in percent."""

FULL = DataSpec("imagenet", size=224, lighting=True)
JITTER = (0.2, 0.2, 0.2, 0.1)
"""IR-Net's changes of colour, instead of lighting."""
SKIP = ("*downsample*",)


def _row(row: str, model: ModelSpec, train: TrainSpec, **parts: Any) -> Recipe:
    data = parts.pop("data", FULL)
    return Recipe("imagenet", row, model, data, train, paper=PAPER.get(row), **parts)


def _one(row: str, train: TrainSpec, model: str = "bireal_resnet18", **options: Any) -> Recipe:
    method = MethodSpec(row.partition("-")[0], options, SKIP)
    return _row(f"onestage-{row}", ModelSpec(model), train, method=method)


def _two(row: str, train: TrainSpec, **options: Any) -> Recipe:
    method = MethodSpec(row, skip=SKIP)
    model = ModelSpec("reactnet_resnet18", {**options, "start": ""})
    return _row(f"twostage-{row}", model, train, method=method, distill=DISTRIBUTION)


def _surged(recipe: Recipe, variant: str = "", **changes: Any) -> Recipe:
    surged = with_surge(recipe, variant)
    options: PathOptions = replace(options_of(variant), eta=ETA, **changes)
    return replace(surged, surge=options, paper=PAPER.get(surged.row))


def _full() -> list[Recipe]:
    relu = ModelSpec("bireal_resnet18", {"activation": "relu"})  # inputs in [0, 1]
    reactnet = _one("reactnet", RBONN, "reactnet_resnet18")
    rbonn = _one("rbonn", RBONN, "reactnet_resnet18")
    recu = _one("recu", RECU, "recu_resnet18")
    stage1 = MethodSpec("reactnet", {"real_weights": True}, SKIP)
    second = _two("reactnet", SECOND)
    return [
        _row("resnet18-float", ModelSpec("resnet18"), FLOAT),
        _row("resnet34-teacher", ModelSpec("resnet34"), FLOAT),
        replace(_one("dorefa-w1a4", BIREAL, input_bits=4), model=relu),
        _one("tbn", BIREAL),
        _one("bnn", BIREAL),
        _one("xnor", BIREAL),
        _one("bireal", BIREAL),
        replace(_one("irnet", IRNET), data=replace(FULL, lighting=False, jitter=JITTER)),
        _one("bonn", BONN),
        # The printed figure was trained with the rotation held constant in the backward.
        _one("rbnn", RBNN, detach_rotation=True),
        replace(recu, data=replace(FULL, scale=(0.08, 1.25))),
        rbonn,
        reactnet,
        _surged(reactnet),
        _surged(reactnet, "1x1"),
        _surged(rbonn),
        _row(
            "twostage-stage1",
            ModelSpec("reactnet_resnet18"),
            STAGE,
            method=stage1,
            distill=DISTRIBUTION,
        ),
        second,
        _two("recu", SECOND_RECU, moved=True),
        _two("rbonn", SECOND_RBONN),
        # The second stage begins with trained weights, and auxiliary ones as their copies.
        _surged(second, auxiliary="copied"),
    ]


def _short(recipe: Recipe) -> Recipe:
    """Return a row of ImageNet as the row of Imagenette."""
    train, batch = recipe.train, 128
    rate = train.lr * batch / train.batch if train.optimizer == "sgd" else train.lr
    return replace(
        recipe,
        table="imagenette",
        model=replace(recipe.model, options={"classes": 10, **recipe.model.options}),
        data=replace(recipe.data, name="imagenette", size=128, stored=96),
        train=replace(train, epochs=100, batch=batch, lr=rate, sync_norm=False),
        paper=None,
    )


RECIPES = (*_full(), *map(_short, _full()))
