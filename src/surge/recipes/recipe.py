"""A recipe: one frozen object that says everything about a run."""

from dataclasses import dataclass, field, replace
from typing import Any, Literal

from surge.compensation.options import PathOptions
from surge.errors import ConfigError


@dataclass(frozen=True)
class ModelSpec:
    """Which float architecture, with which options."""

    name: str
    """A name that ``surge.models.build_model`` knows."""
    options: dict[str, Any] = field(default_factory=dict)
    """Arguments of that architecture."""


@dataclass(frozen=True)
class MethodSpec:
    """How the architecture is binarised."""

    name: str
    """A registered method."""
    options: dict[str, Any] = field(default_factory=dict)
    """Options of the method."""
    skip: tuple[str, ...] = ()
    """Patterns of layers that stay float, beside the first and the last."""


@dataclass(frozen=True)
class DataSpec:
    """Which images are trained on and which are tested on."""

    name: Literal["cifar10", "digits"]
    """The data set."""
    held_out: bool = False
    """Train on 90 % of the training set and test on the rest; the test set is not touched."""
    limit: int | None = None
    """Use only the first images of each part (for quick checks)."""
    augment: bool = True
    """Random crops and flips."""

    def __post_init__(self) -> None:
        """Check the limit."""
        if self.limit is not None and self.limit < 1:
            raise ConfigError(f"limit={self.limit} must be at least 1 (--limit).")


@dataclass(frozen=True)
class TrainSpec:
    """How long, how fast, with which optimizer."""

    epochs: int = 600
    """Passes over the training set."""
    batch: int = 256
    """Images per optimizer step, over all processes."""
    optimizer: Literal["sgd", "adam"] = "sgd"
    """SGD with momentum 0.9, or Adam."""
    lr: float = 0.1
    """Highest learning rate."""
    momentum: float = 0.9
    """SGD's momentum."""
    weight_decay: float = 5e-4
    """L2 penalty on every parameter."""
    schedule: Literal["cosine", "linear", "constant"] = "cosine"
    """Course of the learning rate after the warm-up, set once per epoch."""
    warmup: int = 5
    """Epochs of linear warm-up."""
    accumulate: int = 1
    """Micro-batches per optimizer step."""
    label_smoothing: float = 0.0
    """Mass that the loss moves from the true class to all classes."""
    precision: Literal["fp32", "bf16"] = "bf16"
    """Arithmetic on a GPU; a CPU always computes in fp32."""
    drop_last: bool = False
    """Leave out the partial batch at the end of an epoch."""

    def __post_init__(self) -> None:
        """Check the numbers."""
        for name in ("epochs", "batch", "accumulate"):
            if getattr(self, name) < 1:
                raise ConfigError(f"{name}={getattr(self, name)} must be at least 1 (--{name}).")
        if self.warmup < 0 or self.lr <= 0 or self.weight_decay < 0:
            raise ConfigError(
                f"lr={self.lr} must be positive, weight_decay={self.weight_decay} and "
                f"warmup={self.warmup} not negative."
            )
        if self.batch % self.accumulate:
            raise ConfigError(
                f"batch={self.batch} does not divide into accumulate={self.accumulate} parts."
            )


@dataclass(frozen=True)
class Recipe:
    """A reproducible run: every table row is one of these."""

    table: str
    """The results table that the run belongs to."""
    row: str
    """Its row, ``<model>-<method>[-surge[-variant]]``."""
    model: ModelSpec
    data: DataSpec
    train: TrainSpec = TrainSpec()
    method: MethodSpec | None = None
    """None trains the float model."""
    surge: PathOptions | None = None
    """None trains without an auxiliary path."""
    metric: str = "top1"
    """Name of the reported number."""
    paper: float | None = None
    """What the paper prints for this row."""

    @property
    def name(self) -> str:
        """``<table>-<row>``."""
        return f"{self.table}-{self.row}"

    def __post_init__(self) -> None:
        """A float model has nothing to compensate."""
        if self.surge is not None and self.method is None:
            raise ConfigError(f"{self.row}: a float model has no binary layer for SURGE.")


def with_surge(recipe: Recipe, variant: str = "", paper: float | None = None) -> Recipe:
    """Return the same recipe with SURGE, or with one of its variants."""
    from surge.recipes.variants import options_of

    suffix = f"-surge-{variant}" if variant else "-surge"
    return replace(recipe, row=recipe.row + suffix, surge=options_of(variant), paper=paper)
