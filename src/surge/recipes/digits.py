"""scikit-learn's digits: every method, some ten seconds for a run on one core."""

from surge.recipes.protocol import clamp_of, rows_of_all_methods
from surge.recipes.recipe import DataSpec, MethodSpec, ModelSpec, Recipe, TrainSpec

TRAIN = TrainSpec(epochs=20, batch=64, lr=0.05, weight_decay=1e-4, warmup=2, precision="fp32")


def _row(method: str | None) -> Recipe:
    return Recipe(
        table="digits",
        row=f"cnn-{method or 'float'}",
        model=ModelSpec("cnn_digits", clamp_of(method) if method else {"activation": "relu"}),
        data=DataSpec("digits", augment=False),
        train=TRAIN,
        method=MethodSpec(method) if method else None,
    )


RECIPES = (_row(None), *rows_of_all_methods(_row))
