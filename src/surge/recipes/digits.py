"""scikit-learn's digits: a table that a laptop fills in a minute."""

from surge.recipes.recipe import DataSpec, MethodSpec, ModelSpec, Recipe, TrainSpec, with_surge

TRAIN = TrainSpec(epochs=20, batch=64, lr=0.05, weight_decay=1e-4, warmup=2, precision="fp32")


def _row(method: str | None) -> Recipe:
    return Recipe(
        table="digits",
        row=f"cnn-{method or 'float'}",
        model=ModelSpec("cnn_digits", {} if method else {"activation": "relu"}),
        data=DataSpec("digits", augment=False),
        train=TRAIN,
        method=MethodSpec(method) if method else None,
    )


RECIPES = (
    _row(None),
    _row("bnn"),
    with_surge(_row("bnn")),
    _row("recu"),
    with_surge(_row("recu")),
)
