"""Known mistakes in binary architectures, found on the float model before conversion."""

import operator
from collections.abc import Iterator

import torch
import torch.fx
import torch.nn.functional as F
from torch import nn

PASSING: tuple[type[nn.Module], ...] = (
    nn.Dropout,
    nn.Dropout2d,
    nn.Flatten,
    nn.Identity,
    nn.MaxPool1d,
    nn.MaxPool2d,
    nn.AvgPool2d,
    nn.AdaptiveAvgPool2d,
)
NORMS: tuple[type[nn.Module], ...] = (
    nn.modules.batchnorm._NormBase,
    nn.LayerNorm,
    nn.GroupNorm,
    nn.RMSNorm,
)
RELUS = (torch.relu, F.relu, "relu", "relu_")
PASSING_CALLS = (torch.flatten, F.dropout, F.max_pool2d, F.avg_pool2d, "flatten", "view", "reshape")


def trace(model: nn.Module) -> torch.fx.GraphModule | None:
    """Return the model's graph, or None where its forward cannot be traced."""
    try:
        return torch.fx.symbolic_trace(model)
    except Exception:  # user code meets symbolic values here and may fail in any way
        return None


def find(model: nn.Module, layers: set[str]) -> Iterator[str]:
    """Yield one sentence per pitfall around the named layers, which are about to be binary."""
    graph = trace(model)
    if graph is None:
        return
    modules = dict(graph.named_modules())
    for node in graph.graph.nodes:
        if node.op != "call_module" or node.target not in layers:
            continue
        if _fed_by_relu(node, modules):
            yield (
                f'"{node.target}" is fed by a ReLU, whose outputs are all >= 0: every input bit '
                "would be +1. Use Hardtanh or PReLU before it, or put a norm between."
            )
        if not _reaches_norm(node, modules):
            yield (
                f'"{node.target}" is not followed by a normalisation: sums of +-1 grow with the '
                "fan-in and training is likely to stall. Add a BatchNorm after it."
            )


def _fed_by_relu(node: torch.fx.Node, modules: dict[str, nn.Module]) -> bool:
    source = node.args[0] if node.args else None
    while isinstance(source, torch.fx.Node):
        if source.op == "call_module":
            module = modules[str(source.target)]
            if isinstance(module, nn.ReLU | nn.ReLU6):
                return True
            if not isinstance(module, PASSING):
                return False
        elif source.target in RELUS:
            return True
        elif source.target not in PASSING_CALLS:
            return False
        source = source.args[0] if source.args else None
    return False


def _reaches_norm(node: torch.fx.Node, modules: dict[str, nn.Module]) -> bool:
    for user in node.users:
        if user.op == "call_module":
            module = modules[str(user.target)]
            if isinstance(module, NORMS):
                return True
            if isinstance(module, (*PASSING, nn.PReLU)) and _reaches_norm(user, modules):
                return True
        elif user.target in (*PASSING_CALLS, operator.add, torch.add, "add") and _reaches_norm(
            user, modules
        ):
            return True
    return False
