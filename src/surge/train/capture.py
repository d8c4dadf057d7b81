"""A step as a CUDA graph: small networks are bound by launches, and a graph launches once."""

import gc
import threading
from collections.abc import Callable

import torch
from torch import Tensor

from surge.data import EpochPlan

WARMUPS = 3

ALONE = threading.Lock()
"""Held while a step is compiled and captured: runs that share a GPU do that one by one."""


class Captured:
    """Replay ``step`` from one graph per kind of call; state is as if the warm-up never ran.

    ``state`` lists the tensors that a step changes (parameters, buffers, optimizer state, sums).
    """

    def __init__(self, step: Callable[..., None], state: Callable[[], list[Tensor]]) -> None:
        """Nothing is captured before the first call."""
        self.step, self.state = step, state
        # A stream of its own: libraries keep one scratch buffer per stream, and graphs that run
        # at the same time must not share it.
        self.stream: torch.cuda.Stream | None = None
        self.graphs: dict[tuple[float, ...], tuple[torch.cuda.CUDAGraph, EpochPlan]] = {}

    def __call__(self, part: EpochPlan, *numbers: float) -> None:
        """Copy the part of the plan to where the graph reads it, and replay.

        ``numbers`` are handed to the step and become constants of its graph.
        """
        kind = (len(part), *numbers)
        if kind not in self.graphs:
            with ALONE:
                self.graphs[kind] = self._capture(part, numbers)
        graph, static = self.graphs[kind]
        static.permutation.copy_(part.permutation)
        static.offsets.copy_(part.offsets)
        static.flips.copy_(part.flips)
        graph.replay()

    def _capture(
        self, part: EpochPlan, numbers: tuple[float, ...]
    ) -> tuple[torch.cuda.CUDAGraph, EpochPlan]:
        static = EpochPlan(part.permutation.clone(), part.offsets.clone(), part.flips.clone())
        known = {id(tensor): tensor.detach().clone() for tensor in self.state()}
        random = torch.cuda.get_rng_state(part.permutation.device)
        self.stream = side = self.stream or torch.cuda.Stream()  # type: ignore[no-untyped-call]
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(WARMUPS):
                self.step(static, *numbers)
        torch.cuda.current_stream().wait_stream(side)
        # An autograd graph that only a reference cycle keeps alive could be freed while capturing.
        gc.collect()
        graph = torch.cuda.CUDAGraph()
        pool = next(iter(self.graphs.values()))[0].pool() if self.graphs else None
        with torch.cuda.graph(graph, pool=pool, stream=side, capture_error_mode="thread_local"):
            self.step(static, *numbers)
        torch.cuda.current_stream().wait_stream(side)
        with torch.no_grad():
            for tensor in self.state():
                # Momentum that the warm-up created starts at zero, as if it did not exist yet.
                if id(tensor) in known:
                    tensor.copy_(known[id(tensor)])
                else:
                    tensor.zero_()
        torch.cuda.set_rng_state(random, part.permutation.device)
        return graph, static
