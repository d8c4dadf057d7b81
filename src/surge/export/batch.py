"""Find what depends on how many samples a batch holds: the engine runs them one by one."""

from itertools import zip_longest
from typing import Any

import torch
from torch import fx
from torch.export import ExportedProgram

from surge.export.fxnodes import normal_arguments, refusal

SIZES = ("size", "shape")
"""Arguments that may hold the batch: what it is, a later operator says."""
WHY = "depends on how many samples a batch holds, or on earlier calls"


def check_batch(one: ExportedProgram, other: ExportedProgram) -> None:
    """Raise unless traces of batches of two sizes have the same operators and numbers."""
    for first, second in zip_longest(one.graph.nodes, other.graph.nodes):
        if first is None or second is None or not _same(first, second):
            raise refusal(first or second, WHY)
    places = {node.name: node for node in one.graph.nodes}
    for name, constant in one.graph_signature.inputs_to_lifted_tensor_constants.items():
        if not torch.equal(one.constants[constant], other.constants[constant]):
            raise refusal(next(iter(places[name].users)), WHY)


def _same(first: fx.Node, second: fx.Node) -> bool:
    if first.op != second.op or first.target != second.target or not _same_sizes(first, second):
        return False
    schema = getattr(first.target, "_schema", None)
    names = [] if schema is None else [argument.name for argument in schema.arguments]
    pairs = zip_longest(names, normal_arguments(first), normal_arguments(second))
    return all(name in SIZES or _plain(a) == _plain(b) for name, a, b in pairs)


def _same_sizes(first: fx.Node, second: fx.Node) -> bool:
    """Return whether two tensors have the same shape, or differ in their samples alone."""
    a, b = (tuple(getattr(node.meta.get("val"), "shape", ())) for node in (first, second))
    differing = [pair for pair in zip_longest(a, b) if pair[0] != pair[1]]
    return differing in ([], [(2, 3)])


def _plain(argument: Any) -> Any:
    """Return an argument with the names of fx nodes in their place."""
    return fx.node.map_arg(argument, lambda node: node.name)
