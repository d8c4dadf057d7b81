"""The packed graph while it grows: its nodes so far, and what stands for the trace's values."""

import math
from dataclasses import dataclass
from typing import Any, NoReturn

import torch
from torch import Tensor, fx

from surge.export.fxnodes import module_of, refusal
from surge.export.graph import Node
from surge.export.trace import Traced


@dataclass(frozen=True)
class Heads:
    """Rows of tokens as heads.

    How many, the order of samples (n), (h)eads, (t)okens and their (s)ize; and of (p)arts, if
    queries, keys and values are still side by side.
    """

    count: int
    order: str
    parts: int = 1


class Builder:
    """Constants by name, values by name, nodes so far.

    A value is known by the name of the fx node that made it; constants are evaluated at once.
    """

    def __init__(self, traced: Traced) -> None:
        self.traced = traced
        self.nodes: list[Node] = []
        self.alias: dict[str, str] = {}
        self.constants: dict[str, Any] = {}
        self.shapes: dict[str, tuple[int, ...]] = {}
        self.sequences: set[str] = set()
        """Values ``[N, channels, length]`` that the engine holds with their channels last."""
        self.stacks: set[str] = set()
        """Values of four dimensions that are no images: the engine has the last as channels."""
        self.heads: dict[str, Heads] = {}
        """fx nodes that look at ``[N, tokens, features]`` as heads; their value is that."""
        self.grouped: dict[str, tuple[int, bool]] = {}
        """fx nodes that look at channels in groups: how many, and whether these come second."""
        self.tables: dict[str, tuple[Tensor, int]] = {}
        """Constants that are rows of a table, from the named one on."""
        self.renamed: dict[str, str] = {}
        """Values that only have another shape in torch, and what they are."""

    def original(self, value: str) -> str:
        """Return the value that another one is with a different shape."""
        while value in self.renamed:
            value = self.renamed[value]
        return value

    def rename(self, node: fx.Node, value: str, *, channels_first: bool = False) -> None:
        """Let an fx node be a value with a shape of its own; its values keep their order."""
        name = self.define(node)
        self.renamed[name] = value
        rank = len(self.shapes[name])
        if rank == 3 and channels_first:
            self.sequences.add(name)
        if rank == 4 and not channels_first:
            self.stacks.add(name)

    def producer(self, value: str) -> Node | None:
        """Return the node that makes a value; None for the network's input."""
        value = self.original(value)
        return next((node for node in reversed(self.nodes) if node.output == value), None)

    def define(self, node: fx.Node) -> str:
        """Note the shape of a value that the engine will hold, and return its name."""
        shape = tuple(int(size) for size in node.meta["val"].shape)
        if len(shape) not in (2, 3, 4) or shape[0] != 2 or 0 in shape:
            self.refuse(node, f"makes a tensor of shape {shape}, batch of 2 included")
        self.shapes[node.name] = shape
        self.alias[node.name] = node.name
        return node.name

    def define_heads(self, node: fx.Node, heads: Heads, shape: tuple[int, ...]) -> str:
        """Note a value ``[N, tokens, features]`` that torch has as heads, and return its name."""
        self.heads[node.name] = heads
        self.shapes[node.name] = shape
        self.alias[node.name] = node.name
        return node.name

    def value(self, node: Any) -> str:
        """Return the name of the engine's value behind an fx node."""
        return self.alias[node.name]

    def shape(self, node: Any) -> tuple[int, ...]:
        """Return a value's shape in torch's order."""
        return self.shapes[self.value(node)]

    def is_value(self, argument: Any) -> bool:
        """Return whether an argument is computed at run time."""
        return isinstance(argument, fx.Node) and argument.name in self.alias

    def constant(self, argument: Any) -> Any:
        """Return an argument that is known now: a tensor, a number, or a list of them."""
        if isinstance(argument, fx.Node):
            return self.constants[argument.name]
        if isinstance(argument, list | tuple):
            return [self.constant(item) for item in argument]
        return argument

    def floats(self, argument: Any) -> Any:
        """Return a constant tensor in fp32 on the CPU; None for one that is not given."""
        return None if argument is None else self.constant(argument).detach().float().cpu()

    def is_image(self, node: Any) -> bool:
        """Return whether a value has rows, columns, and its channels first in torch."""
        return len(self.shape(node)) == 4 and self.value(node) not in self.stacks

    def emit(self, node: fx.Node, op: str, inputs: list[Any], **parts: Any) -> str:
        """Append a node of the packed graph that makes this fx node's value.

        All inputs are brought into the layout of the first.
        """
        values = [item if isinstance(item, str) else self.value(item) for item in inputs]
        sequence = values[0] in self.sequences
        values[1:] = [self.in_layout(node, value, sequence) for value in values[1:]]
        if parts.get("residual") is not None:
            parts["residual"] = self.in_layout(node, parts["residual"], sequence)
        headed = [
            self.heads[given.name] for given in node.all_input_nodes if given.name in self.heads
        ]
        if headed:
            name = self.define_heads(node, headed[0], self.shapes[values[0]])
        else:
            name = self.define(node)
        if sequence and len(self.shapes[name]) == 3:
            self.sequences.add(name)
        if values[0] in self.stacks and len(self.shapes[name]) == 4:
            self.stacks.add(name)
        self.nodes.append(Node(op, module_of(node), values, name, **parts))
        return name

    def append(
        self, node: fx.Node, op: str, values: list[str], *, output: str = "", **parts: Any
    ) -> None:
        """Append a node whose value, an fx node's unless named, has a shape already."""
        self.nodes.append(Node(op, module_of(node), values, output or node.name, **parts))

    def in_layout(self, node: fx.Node, value: str, sequence: bool) -> str:
        """Return a value, transposed if it is three-dimensional and in the other layout."""
        shape = self.shapes[value]
        if len(shape) != 3 or (value in self.sequences) == sequence:
            return value
        name = self.inner(node, shape)
        if sequence:
            self.sequences.add(name)
        self.nodes.append(Node("transpose", module_of(node), [value], name))
        return name

    def as_sequence(self, node: fx.Node, x: Any) -> str:
        """Return a value ``[N, channels, length]`` with its channels last in the engine."""
        return self.in_layout(node, self.value(x), True)

    def as_rows(self, node: fx.Node, x: Any) -> str:
        """Return a value ``[N, tokens, features]`` as torch has it."""
        return self.in_layout(node, self.value(x), False)

    def channel_axis(self, value: str) -> int:
        """Return which dimension of a value the engine has as channels."""
        rank = len(self.shapes[value])
        first = (rank == 4 and value not in self.stacks) or value in self.sequences
        return 1 if first else rank - 1

    def inner(self, node: fx.Node, shape: tuple[int, ...]) -> str:
        """Return the name of a new value on the way to this fx node's."""
        name = f"{node.name}.{len(self.nodes)}"
        self.shapes[name] = shape
        return name

    def emit_inner(self, node: fx.Node, op: str, inputs: list[str], **parts: Any) -> str:
        """Append a node whose value is only a step on the way to this fx node's."""
        name = self.inner(node, self.shapes[inputs[0]])
        for layout in (self.sequences, self.stacks):
            if inputs[0] in layout:
                layout.add(name)
        self.nodes.append(Node(op, module_of(node), inputs, name, **parts))
        return name

    def refuse(self, node: fx.Node, why: str) -> NoReturn:
        """Raise an ExportError that names the operator and its module."""
        raise refusal(node, why)

    def vector(self, node: fx.Node, constant: Any, x: Any) -> tuple[str, Tensor]:
        """Return a constant that broadcasts over a value as one number, or one per channel.

        The value comes with it, in the layout whose channels these are.
        """
        tensor = torch.as_tensor(constant, dtype=torch.float32).detach().cpu()
        value, shape = self.value(x), self.shape(x)
        if tensor.numel() == 1:
            # A number of the program has no dimension, a parameter of the model has one.
            return value, tensor.reshape(() if isinstance(constant, int | float) else (1,))
        full = (1,) * (len(shape) - tensor.dim()) + tuple(tensor.shape)
        axes = (1, 2) if len(shape) == 3 else (self.channel_axis(value),)
        for axis in axes:
            if math.prod(full) == full[axis] == shape[axis]:
                return self.in_layout(node, value, axis == 1), tensor.reshape(-1)
        self.refuse(
            node, f"has a constant of shape {tuple(tensor.shape)}, which is not per channel"
        )
