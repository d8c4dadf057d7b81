"""One protocol for all methods: ReCU's ResNet-20, optimizer and schedule, 60 epochs."""

from surge.method import get_method, list_methods
from surge.recipes.recipe import DataSpec, MethodSpec, ModelSpec, Recipe, TrainSpec, with_surge

# RAD's loss judges what a Hardtanh would clamp; its estimator clips the gradient by itself.
UNCLAMPED = ("rad",)


def _row(method: str) -> Recipe:
    return Recipe(
        table="common",
        row=f"resnet20-{method}",
        model=ModelSpec("resnet20", {"activation": "none"} if method in UNCLAMPED else {}),
        data=DataSpec("cifar10"),
        train=TrainSpec(epochs=60),
        method=MethodSpec(method),
    )


def _recipes() -> list[Recipe]:
    rows = []
    for method in list_methods():
        if get_method(method).for_transformers:
            continue
        rows.append(_row(method))
        if not get_method(method).not_compensable:
            rows.append(with_surge(_row(method)))
    return rows


RECIPES = tuple(_recipes())
