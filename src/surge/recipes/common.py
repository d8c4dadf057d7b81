"""One protocol for all methods: ReCU's ResNet-20, optimizer and schedule, 60 epochs."""

from surge.recipes.protocol import clamp_of, rows_of_all_methods
from surge.recipes.recipe import DataSpec, MethodSpec, ModelSpec, Recipe, TrainSpec


def _row(method: str) -> Recipe:
    return Recipe(
        table="common",
        row=f"resnet20-{method}",
        model=ModelSpec("resnet20", clamp_of(method)),
        data=DataSpec("cifar10"),
        train=TrainSpec(epochs=60),
        method=MethodSpec(method),
    )


RECIPES = rows_of_all_methods(_row)
