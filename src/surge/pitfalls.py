"""Known mistakes in binary architectures, found on the float model before conversion."""

import math
import operator
import warnings
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
import torch.fx
import torch.nn.functional as F
from torch import Tensor, nn

from surge.compensation.dry_run import call, evaluating
from surge.layers import StemConv2d

PASSING: tuple[type[nn.Module], ...] = (
    nn.modules.dropout._DropoutNd,
    nn.Flatten,
    nn.Identity,
    nn.modules.pooling._MaxPoolNd,
    nn.modules.pooling._AvgPoolNd,
    nn.modules.pooling._AdaptiveMaxPoolNd,
    nn.modules.pooling._AdaptiveAvgPoolNd,
)
NORMS: tuple[type[nn.Module], ...] = (
    nn.modules.batchnorm._NormBase,
    nn.LayerNorm,
    nn.GroupNorm,
    nn.RMSNorm,
)
Activations = tuple[tuple[type[nn.Module], ...], tuple[Any, ...]]
"""Modules and calls."""
RELUS: Activations = (
    (nn.ReLU, nn.ReLU6),
    (torch.relu, torch.relu_, F.relu, F.relu6, "relu", "relu_"),
)
FOLDS: Activations = ((nn.GELU, nn.Hardswish), (F.gelu, F.hardswish))
"""Negative near zero, but -0 far below it, which is +1 as a bit."""
PASSING_CALLS = (
    torch.flatten,
    F.dropout,
    F.dropout2d,
    *(F.max_pool1d, F.max_pool2d, F.adaptive_max_pool1d, F.adaptive_max_pool2d),
    *(F.avg_pool1d, F.avg_pool2d, F.adaptive_avg_pool1d, F.adaptive_avg_pool2d),
    *("contiguous", "flatten", "mean", "permute", "reshape", "squeeze", "transpose", "view"),
)
ADDITIONS = (operator.add, operator.iadd, torch.add, "add", "add_")
NORM_CALLS = (F.batch_norm, F.group_norm, F.instance_norm, F.layer_norm, F.rms_norm)


@dataclass(frozen=True)
class Risks:
    """Names of the layers that meet each pitfall."""

    fed_by_relu: list[str] = field(default_factory=list)
    not_normed: list[str] = field(default_factory=list)
    folded: list[str] = field(default_factory=list)
    """Layers behind a GELU or a Hardswish."""
    never_negative: list[str] = field(default_factory=list)
    """Layers that took no value below zero from the example, whatever makes it so."""
    passed_over: list[str] = field(default_factory=list)
    """Layers that nobody calls: with the example, or whose weight alone is read."""
    traced: bool = True
    """Whether what stands before and behind layers could be seen."""
    ran: bool = False
    """Whether an example ran through the layers."""

    @property
    def remark(self) -> str:
        """What could not be looked for."""
        if self.traced:
            return ""
        start = "Its forward cannot be traced: a norm missing behind a layer"
        if self.ran:
            return f"{start} was not looked for."
        return (
            f"{start}, or a ReLU or GELU before it, was not looked for (example_input= finds the "
            "latter)."
        )

    def sentences(self, takes_signs: Collection[str]) -> list[str]:
        """Return one sentence per pitfall; a ReLU harms only layers that take signs."""
        found = []
        fed = [name for name in self.fed_by_relu if name in takes_signs]
        if fed:
            found.append(
                f"{_subject(fed)} fed by a ReLU, whose outputs are all >= 0: every input bit would "
                "be +1. Use Hardtanh or PReLU instead, or put a norm between."
            )
        same = [n for n in self.never_negative if n in takes_signs and n not in fed]
        if same:
            found.append(
                f"{_subject(same)} fed by values that are all >= 0 in the example: every input bit "
                "is +1. Use Hardtanh or PReLU instead of a ReLU, or put a norm between."
            )
        folded = [name for name in self.folded if name in takes_signs]
        if folded:
            found.append(
                f"{_subject(folded)} fed by a GELU or a Hardswish, which makes -0 of far negative "
                "values: their bit is +1, like that of positive ones. Use Hardtanh or PReLU "
                "instead, or put a norm between."
            )
        if self.passed_over:
            found.append(
                f"{_subject(self.passed_over)} not called: whatever multiplies with the weight "
                "itself goes on with real numbers. Leave it out with skip=."
            )
        if self.not_normed:
            found.append(
                f"{_subject(self.not_normed)} not followed by a normalisation: sums of +-1 grow "
                "with the fan-in and training is likely to stall. Add a BatchNorm after it."
            )
        return found


def _subject(names: list[str]) -> str:
    others = len(names) - 1
    if not others:
        return f'"{names[0]}" is'
    return f'"{names[0]}" and {others} other layer{"s" * (others > 1)} are'


class _Tracer(torch.fx.Tracer):
    """Takes our own layers for single steps, as torch's."""

    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        return isinstance(m, StemConv2d) or super().is_leaf_module(m, module_qualified_name)


def trace(model: nn.Module) -> torch.fx.GraphModule | None:
    """Return the model's graph, or None where its forward cannot be traced."""
    try:
        with _attributes_kept(model), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return torch.fx.GraphModule(model, _Tracer().trace(model))
    except Exception:  # user code meets symbolic values here and may fail in any way
        return None


@contextmanager
def _attributes_kept(model: nn.Module) -> Iterator[None]:
    """Undo what a forward stores on its modules, which while tracing is made of symbols."""
    modules = list(model.modules())
    kept: list[dict[str, Any]] = [dict(vars(module)) for module in modules]
    inside = [(v, v.copy()) for d in kept for v in d.values() if isinstance(v, dict | list | set)]
    buffers = [(buffer, buffer._version, buffer.clone()) for buffer in model.buffers()]
    try:
        yield
    finally:
        for module, attributes in zip(modules, kept, strict=True):
            vars(module).clear()
            vars(module).update(attributes)
        for holder, content in inside:
            holder.clear()
            (holder.extend if isinstance(holder, list) else holder.update)(content)
        for buffer, version, value in buffers:
            if buffer._version != version:
                buffer.copy_(value)


def find(model: nn.Module, layers: set[str], example: Any = None) -> Risks:
    """Look for pitfalls around the named layers, which are about to be binary."""
    graph = trace(model)
    risks = Risks(traced=graph is not None, ran=example is not None)
    if risks.ran:
        _look_at(model, layers, example, risks)
    if graph is None:
        return risks if risks.ran else _look_by_itself(model, layers, risks)
    modules = dict(graph.named_modules())
    read = {str(node.target) for node in graph.graph.nodes if node.op == "get_attr"}
    called = {node.target for node in graph.graph.nodes if node.op == "call_module"}
    for name in sorted(layers - called):
        if f"{name}.weight" in read and name not in risks.passed_over:
            risks.passed_over.append(name)
    for node in graph.graph.nodes:
        if node.op != "call_module" or node.target not in layers:
            continue
        for kind, names in ((RELUS, risks.fed_by_relu), (FOLDS, risks.folded)):
            if _fed_by(kind, node, modules) and node.target not in names:
                names.append(node.target)
        if not _reaches_norm(node, modules) and node.target not in risks.not_normed:
            risks.not_normed.append(node.target)
    return risks


def _look_by_itself(model: nn.Module, layers: set[str], risks: Risks) -> Risks:
    """Look at an input that the model proposes; where none works nothing more is known."""
    seen = Risks(traced=False, ran=True)
    try:
        with _attributes_kept(model):
            _look_at(model, layers, _proposed_input(model), seen)
    except Exception:  # it was a guess, which may fail in any way
        return risks
    return seen


def _proposed_input(model: Any) -> dict[str, Tensor]:
    """Return one sample of what a model of transformers says it takes."""
    weight = next(model.parameters())
    if model.main_input_name == "pixel_values":  # its dummy inputs would be words
        size = getattr(model.config, "image_size", 224)
        sizes = (size, size) if isinstance(size, int) else size
        drawn = torch.Generator().manual_seed(0)
        image = torch.randn(1, model.config.num_channels, *sizes, generator=drawn, device="cpu")
        return {"pixel_values": image.to(weight)}
    return {name: batch[:1].to(weight.device) for name, batch in model.dummy_inputs.items()}


def _look_at(model: nn.Module, layers: set[str], example: Any, risks: Risks) -> None:
    """Note the layers that see no negative value in a forward, and those right behind a fold."""
    lowest: dict[str, float] = {}
    called: set[str] = set()
    made: dict[int, Tensor] = {}

    def keep(_module: nn.Module, _args: Any, output: Any) -> None:
        made[id(output)] = output

    def note(_module: nn.Module, args: Any, kwargs: Any, name: str) -> None:
        called.add(name)
        x = args[0] if args else kwargs["input"]
        if x.numel() and x.is_floating_point():  # an embedding takes numbers of words
            lowest[name] = min(lowest.get(name, math.inf), float(x.min()))
        if id(x) in made and name not in risks.folded:
            risks.folded.append(name)

    # Transformers has GELUs of its own.
    folds = [m for m in model.modules() if isinstance(m, FOLDS[0]) or "GELU" in type(m).__name__]
    handles = [module.register_forward_hook(keep) for module in folds]
    handles += [
        model.get_submodule(name).register_forward_pre_hook(
            partial(note, name=name), with_kwargs=True
        )
        for name in layers
    ]
    cuda = {p.device.index for p in model.parameters() if p.device.type == "cuda"}
    try:
        with torch.random.fork_rng(sorted(cuda)), torch.no_grad(), evaluating(model):
            call(model, example)
    finally:
        for handle in handles:
            handle.remove()
    risks.passed_over.extend(sorted(layers - called))
    risks.never_negative.extend(name for name in lowest if lowest[name] >= 0)


def _fed_by(kind: Activations, node: torch.fx.Node, modules: dict[str, nn.Module]) -> bool:
    activations, calls = kind
    source = node.args[0] if node.args else node.kwargs.get("input")
    if not isinstance(source, torch.fx.Node) or not source.op.startswith("call"):
        return False
    if source.op == "call_module":
        module = modules[str(source.target)]
        fed, passing = isinstance(module, activations), isinstance(module, PASSING)
    else:
        fed, passing = source.target in calls, source.target in PASSING_CALLS
    return fed or (passing and _fed_by(kind, source, modules))


def _reaches_norm(node: torch.fx.Node, modules: dict[str, nn.Module]) -> bool:
    for user in node.users:
        if user.op == "call_module":
            module = modules[str(user.target)]
            normed, passing = isinstance(module, NORMS), isinstance(module, (*PASSING, nn.PReLU))
        else:
            normed = user.target in NORM_CALLS
            passing = user.target in PASSING_CALLS or user.target in ADDITIONS
        if normed or (passing and _reaches_norm(user, modules)):
            return True
    return False
