"""One optimizer step and one test batch: the only code that runs for every batch.

Nothing here waits for the device or depends on values, so that a whole step can be compiled and
captured in a CUDA graph; sums of loss and hits stay on the device until an epoch ends.
"""

import types
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor, nn
from torch._functorch import config as functorch_config

from surge.data import EpochPlan, ResidentLoader
from surge.layers.hooks import extra_loss, on_step
from surge.ranks import joined
from surge.recipes.recipe import TrainSpec
from surge.train.parts import Parts, compute_dtype

Criterion = Callable[[Tensor, Tensor, Tensor], Tensor]
"""Maps (logits, labels, images) to a loss; distillation is one of these."""


def cross_entropy(smoothing: float) -> Criterion:
    """Return the plain criterion."""

    def criterion(logits: Tensor, labels: Tensor, images: Tensor) -> Tensor:
        return F.cross_entropy(logits.float(), labels, label_smoothing=smoothing)

    return criterion


class Objective(Protocol):
    """What a step minimises and what it counts: images have labels, sentences also teachers."""

    def outputs(self, network: nn.Module, inputs: Tensor) -> Any:
        """Run the network, inside the precision context."""

    def loss(self, outputs: Any, labels: Tensor, inputs: Tensor) -> Tensor:
        """Return the data loss."""

    def hits(self, outputs: Any, labels: Tensor) -> Tensor:
        """Return how many answers are right."""


class ImageObjective:
    """A criterion on the logits."""

    def __init__(self, criterion: Criterion) -> None:
        """Hold the criterion."""
        self.criterion = criterion

    def outputs(self, network: nn.Module, inputs: Tensor) -> Any:
        """Return logits."""
        return network(inputs)

    def loss(self, outputs: Any, labels: Tensor, inputs: Tensor) -> Tensor:
        """Apply the criterion."""
        return self.criterion(outputs, labels, inputs)

    def hits(self, outputs: Any, labels: Tensor) -> Tensor:
        """Count largest logits that stand at the label."""
        right: Tensor = outputs.argmax(dim=1) == labels
        return right.sum()


SMALL = 2**16
"""Elements up to which the work on a weight takes no longer than its start."""


TOGETHER: dict[str, Any] = {"combo_kernels": True, "combo_kernel_per_subkernel_blocks": True}
"""How the compiler puts small kernels together."""


def compiled_step(
    forward: Callable[..., Any], model: nn.Module, *, lean: bool = False
) -> Callable[..., Any]:
    """Compile a whole forward of a model.

    Where all weights are small, kernels that do not depend on each other are put together, each
    with tiles of its own: they take no longer than their start. Larger ones are faster apart.

    A ``lean`` backward computes norms, signs and masks again from the outputs of products, which
    are all it keeps; by default the compiler keeps whatever is read in several places.
    """
    small = all(p.numel() <= SMALL for p in model.parameters())
    compiled: Callable[..., Any] = torch.compile(
        _own_code(forward), fullgraph=True, options=TOGETHER if small else None
    )
    if not lean:
        return compiled

    def leaner(*tensors: Tensor) -> Any:
        with functorch_config.patch(  # read by the compiler, in the first call
            ban_recompute_used_far_apart=False, ban_recompute_materialized_backward=False
        ):
            return compiled(*tensors)

    return leaner


def _own_code(method: Any) -> Any:
    """Return a method with a code object of its own.

    The compiler counts by code object how often it began anew, and gives up at the ninth time: the
    runs of one process must not count together.
    """
    function = getattr(method, "__func__", None)
    if function is None:
        return method
    copied = types.FunctionType(
        function.__code__.replace(),
        function.__globals__,
        function.__name__,
        function.__defaults__,
        function.__closure__,
    )
    return types.MethodType(copied, method.__self__)


class Sums:
    """Running sums on the device, read once per epoch."""

    def __init__(self, device: torch.device) -> None:
        """Start at zero."""
        self.values = torch.zeros(4, device=device, dtype=torch.float64)

    def add(self, loss: Tensor, hits: Tensor, count: int) -> None:
        """Add one batch: its mean loss, hits and size."""
        self.values[0] += loss.detach().double() * count
        self.values[1] += hits
        self.values[2] += count

    def add_dose(self, share: Tensor, count: int) -> None:
        """Add the injected share of one step."""
        self.values[3] += share * count

    def read(self) -> tuple[float, float, float, float]:
        """Return (loss sum, hits, count, dose sum), summed over ranks, and start anew."""
        if joined():
            torch.distributed.all_reduce(self.values)
        loss, hits, count, dose = self.values.tolist()
        self.values.zero_()
        return loss, hits, count, dose


def parts_of(count: int, accumulate: int) -> list[int]:
    """Return how many images each part of a batch has.

    >>> parts_of(9, 4)
    [3, 3, 3]
    """
    size = -(-count // accumulate)
    return [min(size, count - start) for start in range(0, count, size)]


class TrainStep:
    """Forward, backward, optimizer, scale, hooks: called with a part of an epoch's plan."""

    def __init__(
        self,
        parts: Parts,
        network: nn.Module,
        loader: ResidentLoader,
        spec: TrainSpec,
        *,
        criterion: Criterion | None = None,
        objective: Objective | None = None,
        compiled: bool = False,
        lean: bool = False,
    ) -> None:
        """``network`` is the model, or the model inside its data-parallel wrapper."""
        self.parts, self.network, self.loader, self.spec = parts, network, loader, spec
        plain = ImageObjective(criterion or cross_entropy(spec.label_smoothing))
        self.objective: Objective = objective or plain
        self.learned: nn.Module | None = getattr(self.objective, "learned", None)
        if self.learned is not None:  # trained like the model, and dropped with the objective
            own = {"params": list(self.learned.parameters()), "weight_decay": spec.weight_decay}
            parts.optimizer.add_param_group({**parts.optimizer.param_groups[0], **own})
        self.dtype = compute_dtype(spec, loader.device)
        self.sums = Sums(loader.device)
        self._forward = self.forward
        if compiled:
            self._forward = compiled_step(self.forward, parts.model, lean=lean)

    def autocast(self) -> torch.autocast:
        """Return the precision context of the forward."""
        kind = self.loader.device.type
        return torch.autocast(kind, dtype=torch.bfloat16, enabled=self.dtype == torch.bfloat16)

    def compute(self, network: nn.Module, part: EpochPlan) -> tuple[Tensor, Tensor, Tensor]:
        """Make the batch; return the loss to minimise, the data loss, and the hits."""
        images, labels = self.loader.fetch(part)
        with self.autocast():
            outputs = self.objective.outputs(network, images)
        loss = self.objective.loss(outputs, labels, images)
        extra = extra_loss(self.parts.model)
        total = loss + extra if isinstance(extra, Tensor) else loss
        return total, loss, self.objective.hits(outputs, labels)

    def forward(
        self, permutation: Tensor, offsets: Tensor, flips: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Do :meth:`compute` with plain tensors as arguments, which is what can be compiled."""
        return self.compute(self.network, EpochPlan(permutation, offsets, flips))

    def __call__(self, part: EpochPlan, weight: float = 1.0, turn: float = 0.0) -> None:
        """Do one optimizer step on a part of the plan.

        ``turn`` is 0 where auxiliary weights that do not learn in every step do.
        ``weight`` scales the loss: a rank's share of the batch times the number of ranks, so that
        the mean over ranks, which is what they exchange, is the mean over the whole batch.
        """
        if self.parts.compensation is not None:
            self.parts.compensation.at_step(int(turn))
        full = self.loader.batch_size // self.loader.world
        forward = self._forward if len(part) == full else self.forward
        self.parts.optimizer.zero_grad(set_to_none=True)
        start = 0
        for size in parts_of(len(part), self.spec.accumulate):
            micro = part.part(start, start + size)
            start += size
            last = start == len(part)
            with nullcontext() if last or self.loader.world == 1 else self.network.no_sync():  # type: ignore[operator]
                total, loss, hits = forward(micro.permutation, micro.offsets, micro.flips)
                torch.autograd.backward(total * (weight * len(micro) / len(part)))
            self.sums.add(loss, hits, len(micro))
        if self.parts.compensation is not None:
            self.sums.add_dose(self.parts.compensation.injected(), len(part))
        if self.spec.clip is not None:
            groups = self.parts.optimizer.param_groups
            every = [parameter for group in groups for parameter in group["params"]]
            nn.utils.clip_grad_norm_(every, self.spec.clip)
        self.parts.optimizer.step()
        on_step(self.parts.model)

    def state(self) -> list[Tensor]:
        """Return every tensor that a step changes."""
        model, learned = self.parts.model, self.learned
        own = [] if learned is None else list(learned.parameters())
        states = self.parts.optimizer.state.values()
        inner = [v for state in states for v in state.values() if isinstance(v, Tensor)]
        return [*model.parameters(), *own, *model.buffers(), *inner, self.sums.values]


@dataclass(frozen=True)
class Verdict:
    """How a test went."""

    value: float
    """The recipe's metric, in percent."""
    loss: float | None
    """The mean loss, where a test has one."""
    others: dict[str, float] = field(default_factory=dict)
    """Further metrics by name, in percent."""


class TestStep:
    """Loss and hits on one test batch, without gradients."""

    __test__ = False  # not a pytest class

    def __init__(self, model: nn.Module, loader: ResidentLoader, spec: TrainSpec) -> None:
        """Hold the bare model: test batches need no gradient exchange."""
        self.model, self.loader, self.spec = model, loader, spec
        self.dtype = compute_dtype(spec, loader.device)
        self.sums = Sums(loader.device)

    def predict(self, part: EpochPlan) -> tuple[Tensor, Tensor]:
        """Return (logits, labels) of a part of the plan."""
        images, labels = self.loader.fetch(part)
        kind, low = self.loader.device.type, self.dtype == torch.bfloat16
        with torch.no_grad(), torch.autocast(kind, dtype=torch.bfloat16, enabled=low):
            return self.model(images).float(), labels

    def __call__(self, part: EpochPlan) -> None:
        """Add one batch to the sums; the model must be in eval mode."""
        logits, labels = self.predict(part)
        hits = (logits.argmax(dim=1) == labels).sum()
        self.sums.add(F.cross_entropy(logits, labels), hits, len(part))

    def verdict(self, metric: str) -> Verdict:
        """Return what all batches since the last verdict amount to."""
        loss, hits, count, _ = self.sums.read()
        return Verdict(100 * hits / count, loss / count)

    def predictions(self) -> dict[str, NDArray[Any]]:
        """Return what a finished run keeps of its last test, by name: nothing, of images."""
        return {}
