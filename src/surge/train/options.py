"""How a run is executed, and how it ended."""

import math
from collections.abc import Callable
from dataclasses import dataclass, field

from surge.errors import ConfigError


@dataclass(frozen=True)
class LoopOptions:
    """How a run is executed; nothing here changes what it computes beyond rounding."""

    compiled: bool | None = None
    """Compile the forward and backward; by default on a GPU."""
    captured: bool | None = None
    """Capture the step in a CUDA graph; by default on one GPU."""
    lean: bool = False
    """Let a compiled backward compute signs, masks and norms again instead of keeping them."""
    save_every: float = 30.0
    """Seconds between checkpoints; 0 writes one after every epoch."""
    save_steps: int | None = None
    """Also write a checkpoint after every so many steps of an epoch."""
    workers: int | None = None
    """Processes that decode image files for each training process; by default by its cores."""
    deadline: float | None = None
    """Stop after the epoch that passes this time (of ``time.monotonic``), or soon inside it."""
    stop: Callable[[], bool] | None = None
    """Asked after every step and epoch: whether to stop, as at the deadline."""
    dose_every: int = 10
    """Measure the delivered dose every so many epochs, and after the last."""
    shared: bool = False
    """Other runs are trained in this process: torch's own generator is left alone."""
    record_every: int | None = None
    """Let the probe look at every so many epochs, and at the last; 0: at ten, or at fewer where
    more than twenty records would come of it. By default it does not look."""
    record_theorem: bool = False
    """Also measure the theorem's premises then, against a smooth network."""

    def __post_init__(self) -> None:
        """Check the numbers."""
        if not 0 <= self.save_every < math.inf:
            raise ConfigError(f"save_every={self.save_every} must be 0 seconds or more.")
        for name in ("save_steps", "workers"):
            number = getattr(self, name)
            if number is not None and number < 1:
                raise ConfigError(f"{name}={number} must be at least 1.")

    def is_over(self, now: float) -> bool | None:
        """Return whether a run must stop at this time; None where nothing can end it early."""
        if self.deadline is None and self.stop is None:
            return None
        late = self.deadline is not None and now >= self.deadline
        return late or (self.stop is not None and self.stop())


@dataclass(frozen=True)
class Outcome:
    """How a run stands after the loop returned."""

    finished: bool
    epochs: int
    last: float
    best: float
    best_epoch: int
    seconds: float
    mode: str
    """Which path the steps took: eager, compiled, captured."""
    others: dict[str, tuple[float, float]] = field(default_factory=dict)
    """Further metrics: at the end, and when the metric of the recipe was at its best."""
