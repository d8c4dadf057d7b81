"""The small graph that a packed file holds: a list of operators in the order they run.

Almost every operator ends in the same *epilogue*, in this order, each part optional::

    t = t * scale + bias        one value per channel (or one for all)
    t = t + residual            another tensor of the same shape
    t = activation(t)

so that a convolution, the BatchNorm after it, the shortcut and the activation are one node.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

EPILOGUE = ("binary_conv2d", "binary_matmul", "conv2d", "matmul", "layer_norm", "affine")
"""Operators that have an epilogue, the dearest first; ``affine`` is nothing else."""


def times(vector: Tensor) -> Callable[[Tensor], Tensor]:
    """Return the product with one value per channel, as torch computes it."""
    return lambda t: t * vector


def over(vector: Tensor) -> Callable[[Tensor], Tensor]:
    """Return the quotient by one value per channel, as torch computes it."""
    return lambda t: t / vector


def plus(vector: Tensor) -> Callable[[Tensor], Tensor]:
    """Return the sum with one value per channel, as torch computes it."""
    return lambda t: t + vector


@dataclass
class Activation:
    """What happens last: ``relu``, ``clamp``, ``sign``, ``prelu``, ``rprelu`` or ``between``."""

    kind: str
    numbers: dict[str, float] = field(default_factory=dict)
    vectors: dict[str, Tensor] = field(default_factory=dict)


@dataclass
class Node:
    """One operator."""

    op: str
    module: str
    """Name of the module it comes from: tensors and error messages are named after it."""
    inputs: list[str]
    output: str
    numbers: dict[str, Any] = field(default_factory=dict)
    """Attributes: whole numbers and lists of them."""
    weight: Tensor | None = None
    """Of a convolution, as torch has it: [out, in / groups, height, width]; or a table."""
    weight_bits: int = 0
    """Of a real convolution whose weights are odd whole numbers of few bits; 0: real numbers. Of a
    table of +-1: 1."""
    row_scale: Tensor | None = None
    """Of a table: one factor per row."""
    offset: Tensor | None = None
    """Added to such weights, one value per filter."""
    shift: Tensor | None = None
    """Added to the input of a binary convolution before its sign, or to what is compared."""
    scale: Tensor | None = None
    bias: Tensor | None = None
    residual: str | None = None
    activation: Activation | None = None
    arithmetic: list[Callable[[Tensor], Tensor]] | None = None
    """The epilogue as torch computes it, in its own order and precision, for values
    ``[count, channels]``; thresholds are found with it. None: not known."""

    @property
    def reads(self) -> list[str]:
        """All values the node needs."""
        return self.inputs + ([] if self.residual is None else [self.residual])

    @property
    def only_scales(self) -> bool:
        """Whether the node does nothing but multiply by one number."""
        return (
            self.op == "affine"
            and self.scale is not None
            and self.scale.numel() == 1
            and self.bias is None
            and self.residual is None
            and self.activation is None
        )

    @property
    def only_activates(self) -> bool:
        """Whether the node does nothing but apply an activation."""
        bare = self.op == "affine" and self.scale is None and self.bias is None
        return bare and self.residual is None and self.activation is not None

    @property
    def only_adds_vector(self) -> bool:
        """Whether the node does nothing but add one value per channel."""
        return (
            self.op == "affine"
            and self.bias is not None
            and self.scale is None
            and self.residual is None
            and self.activation is None
        )


@dataclass
class Graph:
    """Operators in running order, between one input and one output; shapes without the batch."""

    nodes: list[Node]
    input: str
    input_shape: list[int]
    output: str
    output_shape: list[int]
    folded: int = 0
    """Bytes of vectors that thresholds and other factors have made needless."""

    def consumers(self, value: str) -> list[Node]:
        """Return the nodes that read a value; one that reads it twice comes twice."""
        return [node for node in self.nodes for read in node.reads if read == value]

    def producer(self, value: str) -> Node | None:
        """Return the node that makes a value; None for the network's input."""
        return next((node for node in self.nodes if node.output == value), None)

    def is_private(self, value: str) -> bool:
        """Return whether exactly one node, and nobody outside, reads a value."""
        return value != self.output and len(self.consumers(value)) == 1

    def drop_unused(self) -> None:
        """Remove the nodes whose output nobody reads."""
        needed = {self.output}
        kept: list[Node] = []
        for node in reversed(self.nodes):
            if node.output in needed:
                needed.update(node.reads)
                kept.append(node)
        self.nodes = kept[::-1]

    def __iter__(self) -> Iterator[Node]:
        """Iterate over the nodes."""
        return iter(self.nodes)
