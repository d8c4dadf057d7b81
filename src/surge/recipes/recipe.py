"""A recipe: one frozen object that says everything about a run."""

import math
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

    name: (
        Literal["cifar10", "digits", "imagenet", "imagenette", "voc"]
        | Literal["cola", "sst2", "mrpc", "stsb", "rte", "qnli", "qqp", "mnli"]
    )
    """The data set, or the task of GLUE."""
    held_out: bool = False
    """Train on 90 % of the training set and test on the rest; the test set is not touched."""
    limit: int | None = None
    """Use only the first images of each part (for quick checks)."""
    augment: bool = True
    """Random crops and flips."""
    length: int | None = None
    """Tokens of every sentence; None for images."""
    tokenizer: str = ""
    """Folder of the tokenizer, which is that of the model (--model)."""
    size: int | None = None
    """Side of the crops that the network sees (--size); None: images as stored, as CIFAR-10's."""
    stored: int | None = None
    """Side of the squares kept in memory, from which crops are cut; None reads the files."""
    scale: tuple[float, ...] = (0.08, 1.0)
    """Least and largest share of the area that a random crop has."""
    lighting: bool = False
    """PCA lighting."""
    jitter: tuple[float, ...] = ()
    """Largest changes of brightness, contrast, saturation and hue."""
    repeat: int = 1
    """Passes over the training set in one epoch (VOC)."""
    sizes: tuple[float, ...] = (1.0,)
    """Multiples of the size, of which every training image draws one (VOC)."""

    def __post_init__(self) -> None:
        """Check the numbers."""
        if self.repeat < 1:
            raise ConfigError(f"repeat={self.repeat} must be at least 1.")
        if not self.sizes or min(self.sizes) <= 0:
            raise ConfigError(f"sizes={self.sizes} must be positive numbers.")
        if self.limit is not None and self.limit < 1:
            raise ConfigError(f"limit={self.limit} must be at least 1 (--limit).")


@dataclass(frozen=True)
class DistillSpec:
    """What a student learns from its teacher: weights of the losses; by default those of BiT."""

    teacher: str = ""
    """Folder of the teacher's run (--teacher); the student starts from its weights."""
    logits: float = 1.0
    """Soft cross-entropy of the logits, a mean over batch and classes."""
    hidden: float = 1.0
    """Sum of the losses of all hidden states."""
    hidden_form: Literal["mse", "direction"] = "mse"
    """Squared error, or BiBERT's mismatch of normalised tensors."""
    projections: float = 0.0
    """BiBERT's mismatch of the similarities of queries, keys and values."""
    attention: float = 0.0
    """Squared error of attention scores (BiT computes it and leaves it out)."""
    labels: float = 0.0
    """Cross-entropy with the true labels."""
    scores: Literal["softmax", "mse"] = "softmax"
    """Logits of a task with one output: BiT's loss, which is zero there, or the squared error."""
    teacher_dropout: bool = False
    """Run the teacher with dropout, as BiT's public script does."""
    detector: Literal["ida", "lws"] | None = None
    """Losses between two detectors, IDa-Det's or LWS-Det's; ``hidden`` is then their weight."""

    def __post_init__(self) -> None:
        """Check the weights."""
        for name in ("logits", "hidden", "projections", "attention", "labels"):
            if getattr(self, name) < 0:
                raise ConfigError(f"distill.{name}={getattr(self, name)} must not be negative.")
        if not (self.logits or self.hidden or self.projections or self.attention):
            raise ConfigError("distill: all losses with the teacher have weight 0.")


@dataclass(frozen=True)
class TrainSpec:
    """How long, how fast, with which optimizer."""

    epochs: int = 600
    """Passes over the training set."""
    batch: int = 256
    """Images per optimizer step, over all processes."""
    optimizer: Literal["sgd", "adam", "bertadam"] = "sgd"
    """SGD with momentum 0.9, Adam, or the Adam of BERT."""
    lr: float = 0.1
    """Highest learning rate."""
    momentum: float = 0.9
    """SGD's momentum."""
    nesterov: bool = False
    """SGD's momentum as Nesterov has it."""
    weight_decay: float = 5e-4
    """L2 penalty on the parameters that ``decayed`` names."""
    decayed: Literal["all", "kernels", "conv_fc"] = "all"
    """All parameters; ReActNet's: kernels, whatever is in a convolution, shifts; ReCU's: names
    with conv or fc."""
    schedule: Literal["cosine", "linear", "constant", "drops", "steps", "detector"] = "cosine"
    """Course of the learning rate after the warm-up, set once per epoch; ``drops``: to a tenth
    after 30, 60 and 90 % of all epochs; ``steps``: at every step up over the first tenth of all
    steps, then straight to zero; ``detector``: to a tenth after 8 and 11 of 12 epochs."""
    warmup: int = 5
    """Epochs of linear warm-up."""
    warmup_steps: int = 0
    """Steps of a warm-up from a thousandth, at most a tenth of all steps (detectors)."""
    clip: float | None = None
    """Largest norm of all gradients together; larger ones are shortened to it."""
    accumulate: int = 1
    """Micro-batches per optimizer step."""
    label_smoothing: float = 0.0
    """Mass that the loss moves from the true class to all classes."""
    precision: Literal["fp32", "tf32", "bf16"] = "bf16"
    """Arithmetic on a GPU (tf32: fp32 with shorter factors); a CPU always computes in fp32."""
    drop_last: bool = False
    """Leave out the partial batch at the end of an epoch."""
    level_lr: float = 1e-4
    """Highest learning rate of elastic levels (bertadam)."""
    sync_norm: bool = False
    """Statistics of BatchNorms over all processes (--sync-norm); steps are then not compiled."""
    steps: int | None = None
    """Stop after this many optimizer steps, which may be in the middle of the last epoch."""
    test_every: int | None = None
    """Also test after every so many steps."""
    test_epochs: int = 1
    """Test after every so many epochs, and after the last."""

    def __post_init__(self) -> None:
        """Check the numbers."""
        for name in ("epochs", "batch", "accumulate"):
            if getattr(self, name) < 1:
                raise ConfigError(f"{name}={getattr(self, name)} must be at least 1 (--{name}).")
        if self.test_epochs < 1:
            raise ConfigError(f"test_epochs={self.test_epochs} must be at least 1.")
        if self.warmup < 0 or not 0 < self.lr < math.inf or self.weight_decay < 0:
            raise ConfigError(
                f"lr={self.lr} must be positive, weight_decay={self.weight_decay} and "
                f"warmup={self.warmup} not negative."
            )
        if not 0 <= self.label_smoothing < 1:
            raise ConfigError(f"label_smoothing={self.label_smoothing} must be from 0 to below 1.")
        if self.batch % self.accumulate:
            raise ConfigError(
                f"batch={self.batch} does not divide into accumulate={self.accumulate} parts."
            )
        if self.clip is not None and not self.clip > 0:
            raise ConfigError(f"clip={self.clip} must be positive.")
        for name in ("steps", "test_every"):
            if (value := getattr(self, name)) is not None and value < 1:
                raise ConfigError(f"{name}={value} must be at least 1.")


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
    distill: DistillSpec | None = None
    """None learns from labels alone."""
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


def with_surge(recipe: Recipe, variant: str = "") -> Recipe:
    """Return the same recipe with SURGE, or with one of its variants."""
    from surge.recipes.variants import options_of

    suffix = f"-surge-{variant}" if variant else "-surge"
    return replace(recipe, row=recipe.row + suffix, surge=options_of(variant), paper=None)
