"""Turn the operators of a traced model into the nodes of a packed graph, one by one."""

from collections.abc import Callable
from typing import Any, cast

import torch
from torch import Tensor, fx

from surge.errors import ExportError
from surge.export import (
    aten,
    aten_activations,
    aten_attention,
    aten_pools,
    aten_products,
    aten_shapes,
    aten_tokens,
)
from surge.export.builder import Builder
from surge.export.fxnodes import after, aliasing, flat, normal_arguments, storage
from surge.export.graph import Graph
from surge.export.trace import Traced

FILLED: dict[str, Callable[[list[int]], Tensor]] = {
    "aten.new_ones.default": torch.ones,
    "aten.new_zeros.default": torch.zeros,
}
"""Operators that take a value only to know its type: constants."""
assert all((aten_activations, aten_pools, aten_products, aten_shapes)), "imported to register"
SAME = (
    "aten.alias.default",
    "aten.clone.default",
    "aten.contiguous.default",
    "aten.detach.default",
    "aten.dropout.default",
    "aten.dropout_.default",
    "aten.feature_dropout.default",
    "aten.feature_dropout_.default",
    "aten.to.dtype",
    "aten.to.dtype_layout",
    "aten.to.device",
)
"""Operators that change no value in evaluation."""
EXACT = (torch.float32, torch.float64, torch.int32, torch.int64)
"""Types that hold every value of the engine's; of whole numbers, all that it can count to."""


class Lowering(Builder):
    """One pass over the trace, operator by operator."""

    def __init__(self, traced: Traced) -> None:
        super().__init__(traced)
        self.kept: set[int] = set()
        """Where the tensors of the model itself lie."""
        self.memory: dict[fx.Node, tuple[str, str]] = {}
        """Where the values of fx nodes lie in torch, and which view of that they are."""

    def run(self) -> Graph:
        """Lower everything."""
        program = self.traced.program
        signature = program.graph_signature
        stored = {**program.state_dict, **program.constants}
        self.kept = {storage(item) for item in stored.values() if isinstance(item, Tensor)}
        named = {
            **signature.inputs_to_parameters,
            **signature.inputs_to_buffers,
            **signature.inputs_to_lifted_tensor_constants,
        }
        source = result = ""
        for node in program.graph.nodes:
            if node.op == "placeholder" and node.name in named:
                self.constants[node.name] = stored[named[node.name]]
            elif node.op == "placeholder":
                source = self.define(node)
            elif node.op == "call_function":
                self.call(node)
            elif node.op == "output":
                result = self._result(node)
        for made in self.nodes:
            made.inputs = [self.original(value) for value in made.inputs]
            made.residual = None if made.residual is None else self.original(made.residual)
        before, after = (list(self.shapes[value][1:]) for value in (source, result))
        return Graph(self.nodes, source, before, self.original(result), after)

    def _result(self, node: fx.Node) -> str:
        results = cast(tuple[Any, ...], node.args[0])
        if len(results) != 1 or not isinstance(results[0], fx.Node):
            given = f"{len(results)} values" if len(results) != 1 else repr(results[0])
            raise ExportError(
                f"pack: the model returns {given}, not one tensor; let forward return that alone."
            )
        if results[0].name in self.constants:
            raise ExportError("pack: the model's output does not depend on its input.")
        if (
            results[0].name in {**self.heads, **self.grouped}
            or self.value(results[0]) in self.stacks
        ):
            raise ExportError("pack: the model returns heads of an attention, not a plain tensor.")
        return self.as_rows(results[0], results[0])

    def call(self, node: fx.Node) -> None:
        """Lower one operator, or evaluate it if it depends on nothing but constants."""
        target = str(node.target)
        if target == "aten._assert_tensor_metadata.default":
            return
        arguments = normal_arguments(node)
        if target in FILLED:
            self.constants[node.name] = FILLED[target]([int(size) for size in arguments[1]])
            return
        if not any(self.is_value(item) for item in flat(arguments)):
            self.constants[node.name] = self._evaluate(node)
            aten_tokens.note_table(self, node, arguments)
            return
        aten_attention.check_layout(self, node, flat(arguments))
        if target in SAME:
            self._same(node, arguments)
        elif target in aten.HANDLERS:
            aten.HANDLERS[target](self, node, arguments)
        else:
            self.refuse(node, "has no operator in the packed format")
        self._note_memory(node, arguments[0])

    def _note_memory(self, node: fx.Node, first: Any) -> None:
        """Note what shares memory with its input; what is changed in place changes for all of it.

        In evaluation a dropout *is* its input.
        """
        written, same = aliasing(getattr(node.target, "_schema", None))
        target = str(node.target)
        whole = written or (target in SAME and target != "aten.clone.default")
        if not isinstance(first, fx.Node) or not (whole or same):
            return
        mine = place, _ = self.memory.setdefault(first, (first.name, ""))
        self.memory[node] = mine if whole else (place, node.name)
        later = set(after(node)) if written else set()
        for other, where in self.memory.items() if written else ():
            if where == mine:
                self.alias[other.name] = self.value(node)
            elif where[0] == place and later & set(other.users):
                self.refuse(node, "changes a tensor in place of which a view is read later")

    def _same(self, node: fx.Node, arguments: list[Any]) -> None:
        x = arguments[0]
        before, after = (item.meta["val"].dtype for item in (x, node))
        if before.is_floating_point and not after.is_floating_point:
            self.refuse(node, "turns real numbers into whole ones")
        if after not in (before, *EXACT):
            self.refuse(node, f"rounds to {str(after).removeprefix('torch.')}")
        if "dropout" in str(node.target) and arguments[2] and arguments[1] > 0:
            self.refuse(node, "drops values in evaluation, too; give it training=self.training")
        self.alias[node.name] = self.value(x)
        views: tuple[dict[str, Any], ...] = (self.heads, self.grouped)
        for view in views:
            if x.name in view:
                view[node.name] = view[x.name]

    def _evaluate(self, node: fx.Node) -> Any:
        if torch.Tag.nondeterministic_seeded in getattr(node.target, "tags", ()):
            self.refuse(node, "draws random numbers")
        arguments = [self.constant(item) for item in node.args]
        written, _ = aliasing(getattr(node.target, "_schema", None))
        if written and storage(arguments[0]) in self.kept:
            self.refuse(node, "changes a parameter or a buffer of the model")
        keywords = {key: self.constant(item) for key, item in node.kwargs.items()}
        with torch.no_grad():
            return cast(Callable[..., Any], node.target)(*arguments, **keywords)
