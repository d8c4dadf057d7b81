"""Where the time of a training step goes: kernels of a GPU, gathered by what they do."""

import re
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from surge.files import json_lines

KINDS: dict[str, str] = {
    "own kernels": r"^(narrow_|stem_|_meet)",
    "sums": r"^triton_(red|per|mix)",
    "element by element": r"^triton_(?!tem)|^(?!.*(cudnn|cutlass)).*elementwise",
    "optimizer": r"multi_tensor|fused_adam|fused_sgd",
    "products": r"triton_tem|conv|cudnn|cutlass|xmma|gemm|nvjet|wgrad|dgrad|fprop|cublas"
    r"|init_device_workspace|AddPadding",
    "copies": r"memcpy|memset|copy|fill",
}
"""Names of kernels, the first that fits counts; ``triton_`` ones are made by torch.compile."""
OTHER = "other"
STEPS = 5


@dataclass(frozen=True)
class Share:
    """What one kind of kernel takes of a step."""

    network: str
    variant: str
    mode: str
    kind: str
    kernels: float
    """Launches per step."""
    microseconds: float
    """Per step, on the device."""

    def as_dict(self) -> dict[str, Any]:
        """Return the fields, for a file."""
        return asdict(self)


def kind_of(name: str) -> str:
    """Return what a kernel does, by its name.

    >>> kind_of("triton_poi_fused_add_3"), kind_of("sm90_xmma_dgrad_implicit_gemm_bf16")
    ('element by element', 'products')
    """
    for kind, pattern in KINDS.items():
        if re.search(pattern, name, re.IGNORECASE):
            return kind
    return OTHER


def gathered(events: Iterable[tuple[str, float]], steps: int) -> dict[str, tuple[float, float]]:
    """Return launches and microseconds per step of every kind, the longest first."""
    sums: dict[str, tuple[int, float]] = {}
    for name, duration in events:
        count, total = sums.get(kind_of(name), (0, 0.0))
        sums[kind_of(name)] = (count + 1, total + duration)
    order = sorted(sums.items(), key=lambda item: -item[1][1])
    return {kind: (count / steps, total / steps) for kind, (count, total) in order}


def section(folder: Path) -> str:
    """Return the stored profiles as a table, one row per step, one column per kind."""
    lines = json_lines(folder / "profile.jsonl")
    if not lines:
        return "Nothing is stored yet.\n"
    steps: dict[tuple[str, str, str], dict[str, Share]] = {}
    for line in lines:  # the newest of a step replaces older ones
        share = Share(**line)
        steps.setdefault((share.network, share.variant, share.mode), {})[share.kind] = share
    head = ("network", "variant", "mode", *KINDS, OTHER, "kernels")
    rows = [f"| {' | '.join(head)} |", f"| --- | --- | --- |{' ---: |' * (len(head) - 3)}"]
    for names, kinds in steps.items():
        found = [kinds.get(kind) for kind in (*KINDS, OTHER)]
        times = [
            f"{share.microseconds:,.0f}" if share and share.kernels else "-" for share in found
        ]
        count = sum(share.kernels for share in kinds.values())
        rows.append(f"| {' | '.join((*names, *times, f'{count:,.0f}'))} |")
    return "\n".join(rows) + "\n"


def profile(step: Callable[[], None]) -> dict[str, tuple[float, float]]:
    """Run a warm step a few times and return what its kernels take, by kind; needs a GPU.

    Kinds that do not occur are there with zeros: stored, they replace what an older profile had.
    """
    from torch.profiler import ProfilerActivity
    from torch.profiler import profile as recording

    with recording(activities=[ProfilerActivity.CUDA]) as recorded:
        for _ in range(STEPS):
            step()
    cuda = torch.autograd.DeviceType.CUDA  # type: ignore[attr-defined]
    events = [(e.name, float(e.device_time)) for e in recorded.events() if e.device_type == cuda]
    found = gathered(events, STEPS)
    return found | {k: (0.0, 0.0) for k in (*KINDS, OTHER) if k not in found}
