"""How long a training step takes and what it keeps in memory, with and without SURGE.

A step is everything a loop does for a batch that is already on the device: forward, loss,
backward, optimizer, scales. Inputs are random; speed does not depend on them.
"""

import gc
import importlib.util
import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from surge.compensation import Compensation, compensate_
from surge.convert import binarize_
from surge.errors import ConfigError
from surge.layers.hooks import extra_loss, on_epoch, on_step
from surge.recipes.variants import options_of
from surge.study.bench.training_networks import NETWORKS, Network, built, known
from surge.train.parts import layout_on
from surge.train.step import compiled_step

LITERAL = Path("benchmarks/literal.py")
"""The paper's form, written out; it is part of the repository, not of the package."""

MODES = ("eager", "compiled", "captured", "lean")
"""Plain torch; compiled; compiled and replayed from a CUDA graph; and so that less is kept."""
REPLAYED = ("captured", "lean")
"""Those with a CUDA graph."""

VARIANTS = (
    *("plain", "literal", "surge", "tied", "1x1", "lowrank", "frozen", "fourth", "half", "salient"),
    "fp8",
)
"""``half`` and ``salient``: half of the layers, drawn at random or those that clip most;
``fourth``: auxiliary weights that learn in every fourth step."""

SHOWN = 32
"""Samples by which ``salient`` chooses its layers."""


@dataclass(frozen=True)
class Row:
    """One measured step."""

    network: str
    variant: str
    mode: str
    batch: int
    step_ms: float
    images_per_s: float
    peak_bytes: int | None
    """Most memory held during a step, parameters and optimizer included; None off a GPU."""
    saved_bytes: int
    """Kept by the forward for the backward (measured in eager mode)."""
    flops: int
    """Of convolutions and matrix products, forward and backward."""
    floor_ms: float | None
    """The least time: flops and bytes over the measured ceilings of the device."""
    hardware: str
    torch: str
    commit: str | None
    width: int = 1
    """Channels, in times the network's own."""

    def as_dict(self) -> dict[str, Any]:
        """Return the fields, for a file."""
        return asdict(self)


class Step:
    """One training step of a network in one variant and mode; calling it does the step.

    Where auxiliary weights learn in every k-th step only, a call does all k of a cycle.
    """

    compensation: Compensation | None = None

    def __init__(
        self,
        name: str,
        variant: str,
        mode: str,
        device: torch.device,
        batch: int | None = None,
        width: int = 1,
    ) -> None:
        """Build everything on the device; the first call compiles and captures."""
        network: Network = known(name, NETWORKS, "network")
        known(variant, dict.fromkeys(VARIANTS), "variant")
        self.name, self.variant, self.mode, self.device = name, variant, mode, device
        self.batch, self.width = batch or network.batch, width
        if device.type == "cuda" and device.index is not None:
            torch.cuda.set_device(device)  # graphs, and kernels without a device, go there
        torch.manual_seed(0)
        self.model = built(name, width)
        binarize_(self.model, network.method, skip=network.skip)
        self.inputs, self.labels = self._draw(network)
        self.model.to(device=device, memory_format=layout_on(device))  # type: ignore[call-overload]
        self.optimizer = self._compensate(network)
        self._prepare()
        self._forward = self._loss
        if mode != "eager":
            self._forward = compiled_step(self._loss, self.model, lean=mode == "lean")
        self._graphs: list[torch.cuda.CUDAGraph] = []

    @property
    def cycle(self) -> int:
        """The steps of a call."""
        return 1 if self.compensation is None else self.compensation.every

    def _draw(self, network: Network) -> tuple[Tensor, Tensor]:
        generator = torch.Generator().manual_seed(1)
        if len(network.shape) == 3:
            inputs = torch.randn(self.batch, *network.shape, generator=generator)
            if self.device.type == "cuda":
                inputs = inputs.to(torch.bfloat16).to(memory_format=torch.channels_last)
        else:
            words = torch.randint(1000, 30000, (self.batch, network.shape[1]), generator=generator)
            inputs = torch.stack([words, torch.zeros_like(words), torch.ones_like(words)], dim=1)
        labels = torch.randint(0, network.classes, (self.batch,), generator=generator)
        return inputs.to(self.device), labels.to(self.device)

    def _compensate(self, network: Network) -> torch.optim.Optimizer:
        def optimizer_of(model: nn.Module) -> torch.optim.Optimizer:
            gpu = self.device.type == "cuda"
            if network.adam:
                return torch.optim.Adam(model.parameters(), lr=1e-4, fused=gpu, capturable=gpu)
            return torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9, fused=gpu)

        if self.variant == "plain":
            return optimizer_of(self.model)
        if self.variant == "literal":
            made: torch.optim.Optimizer = literal().compensate_literally_(self.model, optimizer_of)
            return made
        options = vars(options_of("" if self.variant == "surge" else self.variant))
        if self.variant == "salient":
            first = self.inputs[:SHOWN]
            options["example_input"] = first.float() if first.is_floating_point() else first
        self.compensation = compensate_(self.model, **options)
        optimizer = optimizer_of(self.model)
        self.compensation.follow(optimizer)
        return optimizer

    def _prepare(self) -> None:
        from surge.models.bert import BertClassifier

        on_epoch(self.model, 0, 10)
        self.model.train()
        if isinstance(self.model, BertClassifier):
            with torch.no_grad():  # elastic levels take their first values from a batch
                self.model(self.inputs)

    def _loss(self, inputs: Tensor, labels: Tensor) -> Tensor:
        with torch.autocast(self.device.type, torch.bfloat16, enabled=self.device.type == "cuda"):
            logits = self.model(inputs)
        loss = F.cross_entropy(logits.float(), labels)
        extra = extra_loss(self.model)
        return loss + extra if isinstance(extra, Tensor) else loss

    def once(self, number: int = 0) -> None:
        """Do a step of the cycle without a graph."""
        if self.compensation is not None:
            self.compensation.at_step(number)
        self.optimizer.zero_grad(set_to_none=True)
        torch.autograd.backward(self._forward(self.inputs, self.labels))
        self.optimizer.step()
        on_step(self.model)

    def __call__(self) -> None:
        """Do the cycle, and wait for it."""
        if self.mode in REPLAYED and not self._graphs:
            self._capture()
        for number in range(self.cycle):
            if self._graphs:
                self._graphs[min(number, 1)].replay()
            else:
                self.once(number)
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)

    def _capture(self) -> None:
        kinds = range(min(self.cycle, 2))
        stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            for number in (*kinds, *kinds, *kinds):
                self.once(number)
        torch.cuda.current_stream().wait_stream(stream)
        torch.cuda.synchronize(self.device)
        held_bytes(self.device)  # the warm-up's scratch is not the graph's
        torch.cuda.reset_peak_memory_stats(self.device)
        for number in kinds:
            graph = torch.cuda.CUDAGraph()
            pool = self._graphs[0].pool() if self._graphs else None
            with torch.cuda.graph(graph, pool=pool):
                self.once(number)
            self._graphs.append(graph)

    def saved_bytes(self) -> int:
        """Return what an eager forward keeps for its backward, each storage counted once."""
        kept: dict[int, int] = {}
        own = {p.untyped_storage().data_ptr() for p in self.model.parameters()}

        def pack(tensor: Tensor) -> Tensor:
            storage = tensor.untyped_storage()
            if storage.data_ptr() not in own:
                kept[storage.data_ptr()] = storage.nbytes()
            return tensor

        with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
            loss = self._loss(self.inputs, self.labels)
        del loss
        return sum(kept.values())

    def flops(self) -> int:
        """Return the operations of convolutions and products in an eager step, on average."""
        from torch.utils.flop_counter import FlopCounterMode

        own = dict.fromkeys(
            (torch.ops.surge.scaled_product, torch.ops.surge.scaled_signs_product), product_flops
        )
        with FlopCounterMode(display=False, custom_mapping=own) as counter:
            for number in range(self.cycle):
                if self.compensation is not None:
                    self.compensation.at_step(number)
                torch.autograd.backward(self._loss(self.inputs, self.labels))
                self.optimizer.zero_grad(set_to_none=True)
        total: int = counter.get_total_flops()
        return total // self.cycle

    def moved_bytes(self, saved: int) -> int:
        """Return the fewest bytes of a step.

        What is saved is written and read once; a gradient of each activation likewise; weights,
        gradients and optimizer state are read and written once.
        """
        count = sum(p.numel() for p in self.model.parameters())
        state = 2 if isinstance(self.optimizer, torch.optim.Adam) else 1
        return 4 * saved + 4 * int(count) * (2 + 2 + 2 * state)


def product_flops(
    _input: Sequence[int], weight: Sequence[int], *_: Any, out_shape: Sequence[int], **__: Any
) -> int:
    """Return the operations of a layer's product, which the counter sees as one operator."""
    return 2 * math.prod(out_shape) * math.prod(weight[1:])


def literal() -> Any:
    """Import the paper's form from the repository."""
    if not LITERAL.exists():
        raise ConfigError(
            f"The literal form is {LITERAL} of the repository: run this in a checkout, or leave "
            "it out with --variants plain surge tied."
        )
    spec = importlib.util.spec_from_file_location("literal", LITERAL)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def held_bytes(device: torch.device) -> int:
    """Return the memory that tensors hold; 0 off a GPU.

    Scratch that libraries keep for each stream is freed first: whoever came first would pay for
    all. A graph owns the memory in which it was captured, scratch included, and is not harmed.
    """
    gc.collect()
    if device.type != "cuda":
        return 0
    torch.cuda.synchronize(device)
    torch._C._cuda_clearCublasWorkspaces()
    torch.cuda.empty_cache()
    return torch.cuda.memory_allocated(device)


def peak_bytes(step: Step, before: int) -> int | None:
    """Return the most memory held beyond ``before`` by a step that is warm; None off a GPU.

    ``before`` is what :func:`held_bytes` said before the step was built: other steps may live. A
    captured step takes its memory when it is captured; a replay takes none.
    """
    if step.device.type != "cuda":
        return None
    if step.mode not in REPLAYED:
        torch.cuda.reset_peak_memory_stats(step.device)
        step()
    return torch.cuda.max_memory_allocated(step.device) - before


@dataclass(frozen=True)
class Prepared:
    """A step that is warm, and what does not change from step to step."""

    step: Step
    peak_bytes: int | None
    saved_bytes: int
    flops: int
    moved_bytes: int


def prepare(
    name: str, variant: str, mode: str, device: torch.device, batch: int, width: int
) -> Prepared:
    """Build a step, compile and capture it as its mode says, and do it once."""
    # Counted on a network of its own: its autograd nodes would bind the graph to its stream.
    counted = Step(name, variant, "eager", device, batch, width)
    saved, flops = counted.saved_bytes(), counted.flops()
    del counted
    before = held_bytes(device)
    step = Step(name, variant, mode, device, batch, width)
    step()
    return Prepared(step, peak_bytes(step, before), saved, flops, step.moved_bytes(saved))
