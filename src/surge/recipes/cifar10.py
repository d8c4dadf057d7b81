"""CIFAR-10: the paper's first table, each method with its own schedule.

Rows whose authors publish no CIFAR-10 schedule (DoReFa, XNOR, BNN, Bi-Real, ReActNet) use ReCU's.
"""

from dataclasses import replace

from surge.recipes.recipe import DataSpec, MethodSpec, ModelSpec, Recipe, TrainSpec, with_surge

MODELS = {"resnet20": "resnet20", "resnet18": "resnet18_cifar", "vggsmall": "vgg_small"}
RECU = TrainSpec()
IRNET_RESNET = TrainSpec(epochs=400, batch=128, weight_decay=1e-4, warmup=0)
IRNET_VGG = TrainSpec(epochs=300, batch=128, lr=0.007, weight_decay=1e-4, warmup=0)
FLOAT = TrainSpec(epochs=200, batch=128)

PAPER = {
    "resnet18-float": 94.8,
    "resnet18-irnet": 91.5,
    "resnet18-recu": 92.8,
    "resnet18-recu-surge": 93.1,
    "resnet20-float": 92.1,
    "resnet20-dorefa": 79.3,
    "resnet20-irnet": 86.5,
    "resnet20-recu": 87.4,
    "resnet20-recu-surge": 88.0,
    "resnet20-recu-surge-dpgc": 87.8,
    "resnet20-recu-surge-clipped": 87.7,
    "resnet20-recu-surge-unclipped": 87.6,
    "vggsmall-float": 94.1,
    "vggsmall-xnor": 89.8,
    "vggsmall-dorefa": 90.2,
    "vggsmall-irnet": 90.4,
    "vggsmall-recu": 92.2,
    "vggsmall-recu-surge": 92.5,
}
"""Top-1 accuracy that the paper prints, in percent."""


def _row(model: str, method: str) -> Recipe:
    train = RECU
    options: dict[str, object] = {}
    if method == "irnet":
        train = IRNET_VGG if model == "vggsmall" else IRNET_RESNET
        options = {"t_min": 1e-1 if model == "vggsmall" else 1e-3}
    return Recipe(
        table="cifar10",
        row=f"{model}-{method}",
        model=ModelSpec(MODELS[model]),
        data=DataSpec("cifar10"),
        train=train,
        method=MethodSpec(method, options),
        paper=PAPER.get(f"{model}-{method}"),
    )


def _float(model: str) -> Recipe:
    return Recipe(
        table="cifar10",
        row=f"{model}-float",
        model=ModelSpec(MODELS[model], {"activation": "relu"}),
        data=DataSpec("cifar10"),
        train=FLOAT,
        paper=PAPER[f"{model}-float"],
    )


def _recipes() -> list[Recipe]:
    rows = [_float(model) for model in MODELS]
    methods = ("bnn", "xnor", "dorefa", "bireal", "irnet", "recu", "reactnet")
    for model in MODELS:
        for method in methods:
            plain = _row(model, method)
            surged = with_surge(plain)
            rows += [plain, replace(surged, paper=PAPER.get(surged.row))]
    for variant in ("dpgc", "clipped", "unclipped"):
        row = with_surge(_row("resnet20", "recu"), variant)
        rows.append(replace(row, paper=PAPER[row.row]))
    return rows


RECIPES = tuple(_recipes())
