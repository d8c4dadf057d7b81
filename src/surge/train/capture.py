"""A step as a CUDA graph: small networks are bound by launches, and a graph launches once."""

from collections.abc import Callable

import torch
from torch import Tensor

from surge.data import EpochPlan

WARMUPS = 3


class Captured:
    """Replay ``step`` from one graph per batch size; state is as if the warm-up never ran.

    ``state`` lists the tensors that a step changes (parameters, buffers, optimizer state, sums).
    """

    def __init__(self, step: Callable[[EpochPlan], None], state: Callable[[], list[Tensor]]):
        """Nothing is captured before the first call."""
        self.step, self.state = step, state
        self.graphs: dict[int, tuple[torch.cuda.CUDAGraph, EpochPlan]] = {}

    def __call__(self, part: EpochPlan) -> None:
        """Copy the part of the plan to where the graph reads it, and replay."""
        if len(part) not in self.graphs:
            self.graphs[len(part)] = self._capture(part)
        graph, static = self.graphs[len(part)]
        static.permutation.copy_(part.permutation)
        static.offsets.copy_(part.offsets)
        static.flips.copy_(part.flips)
        graph.replay()

    def _capture(self, part: EpochPlan) -> tuple[torch.cuda.CUDAGraph, EpochPlan]:
        static = EpochPlan(part.permutation.clone(), part.offsets.clone(), part.flips.clone())
        known = {id(tensor): tensor.detach().clone() for tensor in self.state()}
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(WARMUPS):
                self.step(static)
        torch.cuda.current_stream().wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        pool = next(iter(self.graphs.values()))[0].pool() if self.graphs else None
        with torch.cuda.graph(graph, pool=pool):
            self.step(static)
        with torch.no_grad():
            for tensor in self.state():
                # Momentum that the warm-up created starts at zero, as if it did not exist yet.
                if id(tensor) in known:
                    tensor.copy_(known[id(tensor)])
                else:
                    tensor.zero_()
        return graph, static
