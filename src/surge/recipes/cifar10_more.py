"""CIFAR-10, continued: the rows of RAD, RBNN, DSQ, SLB, and of AdaBin, which the paper lacks.

RAD and DSQ publish no CIFAR-10 schedule and use ReCU's, as AdaBin does here for comparison. The
steps of SLB's learning rate are not published either; a cosine takes their place. The networks
are those of all other rows.
"""

from typing import Any

from surge.recipes.recipe import DataSpec, MethodSpec, ModelSpec, Recipe, TrainSpec, with_surge

RECU = TrainSpec()
RBNN = TrainSpec(epochs=1000, weight_decay=1e-4)
SLB_RESNET = TrainSpec(epochs=500, batch=100, weight_decay=1e-4, warmup=0)
SLB_VGG = TrainSpec(epochs=500, batch=100, lr=0.02, weight_decay=5e-4, warmup=0)

RESNET18, RESNET20, VGG = "resnet18_cifar", "resnet20", "vgg_small"


def _row(
    row: str,
    model: str,
    train: TrainSpec,
    paper: float | None,
    *,
    activation: str | None = None,
    **options: Any,
) -> Recipe:
    return Recipe(
        table="cifar10",
        row=row,
        model=ModelSpec(model, {"activation": activation} if activation else {}),
        data=DataSpec("cifar10"),
        train=train,
        method=MethodSpec(row.rpartition("-")[2], options),
        paper=paper,
    )


ROWS = (
    # RAD's loss judges what a Hardtanh would clamp; its estimator clips the gradient by itself.
    _row("resnet18-rad", RESNET18, RECU, 90.5, activation="none"),
    # The printed figures were trained with the rotation held constant in the backward.
    _row("resnet18-rbnn", RESNET18, RBNN, 92.2, detach_rotation=True),
    _row("vggsmall-rbnn", VGG, RBNN, 91.3, detach_rotation=True),
    _row("resnet20-dsq", RESNET20, RECU, 84.1),
    _row("vggsmall-dsq", VGG, RECU, 91.7),
    _row("resnet20-slb", RESNET20, SLB_RESNET, 85.5, start=0.4),
    _row("vggsmall-slb", VGG, SLB_VGG, 92.0, start=0.3),
    _row("resnet20-adabin", RESNET20, RECU, None),
)

RECIPES = tuple(recipe for row in ROWS for recipe in (row, with_surge(row)))
