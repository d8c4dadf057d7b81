"""What a device can do at most: the least time that a training step could take."""

from collections.abc import Callable
from dataclasses import dataclass

import torch


@dataclass(frozen=True)
class Ceilings:
    """What the device can do, measured."""

    flops: float
    """Per second, in a large bf16 matrix product."""
    bytes: float
    """Per second, read plus written, in a large copy."""

    def floor(self, flops: int, moved: int) -> float:
        """Return the least seconds for that many operations and bytes."""
        return max(flops / self.flops, moved / self.bytes)


def measured_ceilings(device: torch.device) -> Ceilings | None:
    """Measure a large copy and a large matrix product; None off a GPU."""
    if device.type != "cuda":
        return None
    size = 8192
    a = torch.randn(size, size, device=device, dtype=torch.bfloat16)
    b = torch.randn(size, size, device=device, dtype=torch.bfloat16)
    source = torch.randn(2**28, device=device)
    target = torch.empty_like(source)
    return Ceilings(
        flops=2 * size**3 / _median_seconds(lambda: a @ b),
        bytes=8 * source.numel() / _median_seconds(lambda: target.copy_(source)),
    )


def _median_seconds(call: Callable[[], object]) -> float:
    times = []
    for _ in range(20):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
        start.record()
        call()
        end.record()
        torch.cuda.synchronize()
        times.append(float(start.elapsed_time(end)) / 1e3)
    return sorted(times)[len(times) // 2]
