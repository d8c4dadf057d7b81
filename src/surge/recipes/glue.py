"""GLUE: a float teacher for every task, and binary students that are distilled from it.

Schedules are those of BiT's public code; BiBERT's rows have its learning rates, batch and losses.
The network is whatever BERT ``--model`` names: the papers use BERT-base, so that nothing here
stands beside a printed figure.
"""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from surge.compensation.options import PathOptions
from surge.data.glue import TASKS
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


@dataclass(frozen=True)
class Schedule:
    """What differs from task to task."""

    epochs: int
    batch: int
    lr: float
    length: int
    bibert_lr: float
    teacher_epochs: int


SCHEDULES = {
    "cola": Schedule(50, 16, 5e-4, 64, 1e-4, 6),
    "sst2": Schedule(10, 8, 1e-4, 64, 1e-4, 3),
    "mrpc": Schedule(20, 8, 5e-4, 128, 2e-4, 6),
    "stsb": Schedule(20, 8, 5e-4, 128, 1e-4, 6),
    "rte": Schedule(20, 8, 5e-4, 128, 1e-5, 6),
    "qnli": Schedule(10, 8, 2e-4, 128, 1e-4, 3),
    "qqp": Schedule(6, 32, 2e-4, 128, 1e-4, 3),
    "mnli": Schedule(6, 16, 2e-4, 128, 5e-5, 3),
}
"""Epochs, batch, learning rate and length of BiT's code; the paper trains QQP and MNLI for 5.

BiT takes its teachers from others; the ones here are fine-tuned as is usual for a BERT.
"""

SURGE = PathOptions(eta=1e-3, auxiliary="copied")
"""The paper states no eta for GLUE. Weights are pretrained, so auxiliary ones start as copies."""

BIBERT = DistillSpec(hidden_form="direction", projections=1.0, labels=0.5, scores="mse")
TERNARY = MethodSpec("binarybert", {"ternary": True})


def _row(task: str, kind: str, train: TrainSpec, **parts: Any) -> Recipe:
    return Recipe(
        table="glue",
        row=f"{task}-{kind}",
        model=ModelSpec("bert"),
        data=DataSpec(task, augment=False, length=SCHEDULES[task].length),  # type: ignore[arg-type]
        train=train,
        metric=TASKS[task].metrics[0],
        **parts,
    )


def _train(task: str, **changes: Any) -> TrainSpec:
    plan = SCHEDULES[task]
    settings: dict[str, Any] = {
        "epochs": plan.epochs,
        "batch": plan.batch,
        "lr": plan.lr,
        "optimizer": "bertadam",
        "schedule": "steps",
        "weight_decay": 0.01,
        "warmup": 0,
        "precision": "tf32",  # as fp32 was on a GPU when BiT was published
        "test_every": 100,
    }
    return TrainSpec(**{**settings, **changes})


def _rows(task: str) -> list[Recipe]:
    plan = SCHEDULES[task]
    teacher = _train(task, epochs=plan.teacher_epochs, batch=32, lr=2e-5)
    bit = _row(task, "bit", _train(task), method=MethodSpec("bit"), distill=DistillSpec())
    plain = MethodSpec("bnn", {"transformer": True})
    own = _train(task, batch=16, lr=plan.bibert_lr)
    bases = [
        bit,
        _row(task, "bibert", own, method=MethodSpec("bibert"), distill=BIBERT),
        _row(task, "bnn", _train(task), method=plain, distill=DistillSpec()),
        _half(_row(task, "binarybert", _train(task, lr=5e-5), method=TERNARY), split=True),
    ]
    ternary = _half(_row(task, "ternary", _train(task, lr=1e-5), method=TERNARY), split=False)
    rows = [_row(task, "teacher", teacher), ternary]
    for base in bases:
        rows += [base, replace(with_surge(base), surge=SURGE)]
    return [
        *rows,
        replace(with_surge(bit, "align"), surge=replace(SURGE, align=1.0)),
        replace(with_surge(bit, "tied"), surge=replace(SURGE, auxiliary="tied")),
        replace(with_surge(bit, "lowrank"), surge=replace(SURGE, auxiliary="low_rank", rank=8)),
    ]


def _half(recipe: Recipe, *, split: bool) -> Recipe:
    """Return one of BinaryBERT's two stages: ternary at half the width, then split into binary."""
    options: dict[str, Any] = {"width": "half", **({"start": ""} if split else {})}
    return replace(recipe, model=replace(recipe.model, options=options), distill=DistillSpec())


def start_of(recipe: Recipe) -> str:
    """Return the name of the recipe that trains what another one splits."""
    return f"{recipe.table}-{recipe.data.name}-ternary"


def with_model(recipe: Recipe, model: str | None) -> Recipe:
    """Return the recipe with the folder of a pretrained BERT, which rows of GLUE need."""
    if recipe.model.name != "bert":
        if model is not None:
            raise ConfigError(f"{recipe.name} takes no --model; only rows of GLUE do.")
        return recipe
    if model is None:
        raise ConfigError(
            f"{recipe.name} needs a pretrained BERT: name its folder with --model DIR "
            "(config.json, weights, tokenizer)."
        )
    folder = str(Path(model).expanduser().resolve())
    options = {**recipe.model.options, "path": folder}
    return replace(
        recipe,
        model=replace(recipe.model, options=options),
        data=replace(recipe.data, tokenizer=folder),
    )


def teacher_of(recipe: Recipe) -> str:
    """Return the name of the recipe that trains a student's teacher."""
    return f"{recipe.table}-{recipe.data.name}-teacher"


RECIPES = tuple(recipe for task in SCHEDULES for recipe in _rows(task))
