"""One protocol for all methods: ReCU's ResNet-20, optimizer and schedule, 60 epochs."""

from surge.method import list_methods
from surge.recipes.recipe import DataSpec, MethodSpec, ModelSpec, Recipe, TrainSpec, with_surge


def _row(method: str) -> Recipe:
    return Recipe(
        table="common",
        row=f"resnet20-{method}",
        model=ModelSpec("resnet20"),
        data=DataSpec("cifar10"),
        train=TrainSpec(epochs=60),
        method=MethodSpec(method),
    )


RECIPES = tuple(
    recipe for method in list_methods() for recipe in (_row(method), with_surge(_row(method)))
)
