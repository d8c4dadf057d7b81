"""Which path the steps of a run take, and why."""

from dataclasses import dataclass

import torch

from surge.errors import ConfigError
from surge.train.distributed import World


@dataclass(frozen=True)
class Mode:
    """Eager, compiled, or compiled and captured in a CUDA graph."""

    compiled: bool
    """Whether torch.compile makes the forward and the backward."""
    captured: bool
    """Whether a whole step is replayed from a CUDA graph."""
    why: str
    """The reason, in a few words."""
    lean: bool = False
    """Whether a compiled backward computes again what it need not keep."""

    def __str__(self) -> str:
        """Name the path alone."""
        chosen = [n for n, on in (("compiled", self.compiled), ("captured", self.captured)) if on]
        return (" and ".join(chosen) or "eager") + (", lean" if self.lean else "")


def choose_mode(
    device: torch.device,
    world: World,
    compiled: bool | None,
    captured: bool | None,
    *,
    fixed: bool = True,
    lean: bool = False,
) -> Mode:
    """Return the path for a device and a number of processes; None leaves a choice to us.

    Steps that are not ``fixed``, but do other work for every batch, are neither compiled nor
    captured.

    >>> mode = choose_mode(torch.device("cpu"), World(), None, None)
    >>> f"{mode}: {mode.why}"
    'eager: no GPU is used'
    """
    on_gpu = device.type == "cuda"
    alone = world.size == 1
    if captured and not on_gpu:
        raise ConfigError("--captured needs a CUDA GPU: a CPU has no graphs to capture.")
    if captured and not alone:
        raise ConfigError(
            f"--captured works in one process, not in {world.size}: gradients that are exchanged "
            "between processes are not captured."
        )
    if not fixed:
        if compiled or captured or lean:
            option = "--captured" if captured else "--compiled" if compiled else "--lean"
            raise ConfigError(f"{option} needs steps that all do the same; a detector's do not.")
        return Mode(compiled=False, captured=False, why="the work depends on the pictures")
    compiles = on_gpu if compiled is None else compiled
    if lean and not (compiles and alone):
        raise ConfigError(
            "--lean needs steps that one process compiles: by default one with a GPU, else with "
            "--compiled True."
        )
    reasons = []
    if compiled is not None:
        reasons.append(f"--compiled {compiled}")
    if captured is not None:
        reasons.append(f"--captured {captured}")
    if not on_gpu:
        reasons.append("no GPU is used")
    elif not alone:
        reasons.append(f"a GPU in each of {world.size} processes, which no graph captures")
    else:
        reasons.append("one process with a GPU")
    return Mode(
        compiled=compiles,
        captured=on_gpu and alone if captured is None else captured,
        why=", ".join(reasons),
        lean=lean,
    )
