"""The two ends of a model for other engines: one tensor in, one tensor out.

Models of transformers take their tensor by name, and return it among others.
"""

import copy
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from surge.errors import ExportError

Example = Tensor | tuple[Tensor, ...] | Mapping[str, Tensor]
"""An input with a batch; in a tuple, or by name where the model takes it so."""
MAIN = "logits"
"""Which of several outputs is meant."""


def unnamed(example: Any) -> tuple[Any, str | None]:
    """Return an example without the name or the tuple around it, and that name."""
    if isinstance(example, Mapping) and len(example) == 1:
        ((name, value),) = example.items()
        return value, name
    if isinstance(example, tuple | list) and len(example) == 1:
        return example[0], None
    return example, None


def plain_ends_(network: nn.Module, name: str | None, what: str) -> None:
    """Let a network take its one tensor by place, not by ``name``, and return one tensor."""
    inner = network.forward

    def forward(x: Tensor) -> Tensor:
        return _one_output(inner(x) if name is None else inner(**{name: x}), what)

    vars(network)["forward"] = forward


def evaluated(model: nn.Module, value: Tensor, name: str | None, what: str) -> Tensor:
    """Return what a model itself makes of an input, in evaluation and fp32 on the CPU."""
    network = copy.deepcopy(model).cpu().float().eval()
    with torch.no_grad():
        return _one_output(network(value) if name is None else network(**{name: value}), what)


def _one_output(value: Any, what: str) -> Tensor:
    if isinstance(value, Tensor):
        return value
    items: Mapping[Any, Any] = {}
    if isinstance(value, Mapping):
        items = value
    elif isinstance(value, tuple | list):
        items = dict(enumerate(value))
    tensors = {key: item for key, item in items.items() if isinstance(item, Tensor)}
    if MAIN in tensors:
        return tensors[MAIN]
    if len(tensors) == 1:
        return next(iter(tensors.values()))
    names = f" ({', '.join(map(str, tensors))})" if tensors else ""
    raise ExportError(
        f"{what}: the model returns a {type(value).__name__} with {len(tensors)} tensors{names}, "
        "not one; let forward return that alone."
    )
