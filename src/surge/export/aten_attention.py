"""Heads of an attention, and the products of two computed values.

Heads ``[N, heads, tokens, size]`` are no values of their own: they are rows of tokens, looked at
in another order, and only signs and products may look at them like that.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, fx

from surge.export.aten import SIGNS, handles
from surge.export.graph import Activation, Node
from surge.layers.elastic import FLOOR, elastic_unsigned

if TYPE_CHECKING:
    from surge.export.lower import Lowering

ELASTIC = ("surge.elastic_signed.default", "surge.elastic_unsigned.default")
BOOLEAN = "surge.bool_clipped.default"
MATMUL = ("aten.matmul.default", "surge.two_level_product.default")
MOVES = ("aten.transpose.int", "aten.permute.default")
VIEWS = ("aten.view.default", "aten.reshape.default", "aten.flatten.using_ints")
COPIES = ("aten.alias.default", "aten.clone.default", "aten.contiguous.default")
KEPT = (*COPIES, "aten.detach.default", "aten.dropout.default", "aten.to.dtype")
HEADED = {*SIGNS, *ELASTIC, *MATMUL, *MOVES, *VIEWS, *KEPT}
"""Operators that may look at heads."""
STACKED = {
    *HEADED - {*MOVES, *VIEWS},
    BOOLEAN,
    "aten.add.Tensor",
    "aten.sub.Tensor",
    "aten.mul.Tensor",
    "aten.div.Tensor",
    "aten.eq.Scalar",
    "aten.relu.default",
    "aten.clamp.default",
    "aten.softmax.int",
    "aten.unsqueeze.default",
    "surge.round_levels.default",
}
"""Operators for which four dimensions need not be those of an image."""


@dataclass(frozen=True)
class Heads:
    """Rows of tokens as heads: how many, and the order of (h)eads, (t)okens and their (s)ize."""

    count: int
    order: str


def check_layout(low: "Lowering", node: fx.Node, arguments: list[Any]) -> None:
    """Refuse operators that would take heads, or a stack of matrices, for an image."""
    target = str(node.target)
    for item in arguments:
        if not low.is_value(item):
            continue
        if item.name in low.heads and target not in HEADED:
            low.refuse(node, "has no operator in the packed format for the heads of an attention")
        if low.value(item) in low.stacks and target not in STACKED:
            low.refuse(node, "has no operator in the packed format for a stack of matrices")


def as_heads(low: "Lowering", node: fx.Node, x: fx.Node, after: tuple[int, ...]) -> bool:
    """Split features into heads, or join them again; return whether a reshape does that."""
    known, base = low.heads.get(x.name), low.shape(x)
    if known is not None:
        if known.order != "ths" or after != base:
            low.refuse(node, f"joins heads in another order than tokens, heads; to {after}")
        low.alias[node.name] = low.value(x)
        return True
    splits = len(base) == 3 and len(after) == 4 and after[:2] == base[:2]
    if not splits or low.value(x) in low.sequences or after[2] * after[3] != base[2]:
        return False
    low.alias[node.name] = low.value(x)
    low.heads[node.name] = Heads(after[2], "ths")
    return True


@handles(*MOVES)
def _move(low: "Lowering", node: fx.Node, a: list[Any]) -> None:
    known, rank = low.heads.get(a[0].name), node.meta["val"].dim()
    axes = list(range(rank))
    if "permute" in str(node.target):
        axes = [int(axis) % rank for axis in a[1]]
    else:
        one, other = int(a[1]) % rank, int(a[2]) % rank
        axes[one], axes[other] = other, one
    if known is None and axes == [0, 2, 1]:
        # Rows of tokens are a sequence seen from the side: the engine has both alike.
        value = low.value(a[0])
        low.rename(node, value, channels_first=value not in low.sequences)
        return
    if known is None:
        low.refuse(node, "has no operator in the packed format")
    assert known is not None
    order = "".join(f"n{known.order}"[axis] for axis in axes)
    if order not in ("nths", "nhts", "nhst"):
        low.refuse(node, f"moves the dimensions of heads to {order}")
    low.alias[node.name] = low.value(a[0])
    low.heads[node.name] = Heads(known.count, order[1:])


@handles("surge.elastic_signed.default")
def _elastic_signed(low: "Lowering", node: fx.Node, a: list[Any]) -> None:
    signs = low.emit_inner(node, "affine", [low.value(a[0])], activation=Activation("sign"))
    _scale(low, node, a[0], signs, level_of(low, a[1]))


@handles("surge.elastic_unsigned.default")
def _elastic_unsigned(low: "Lowering", node: fx.Node, a: list[Any]) -> None:
    level = level_of(low, a[1])
    bits = low.emit_inner(node, "above", [low.value(a[0])], numbers={"limit": last_zero(level)})
    _scale(low, node, a[0], bits, level)


@handles(BOOLEAN)
def _boolean(low: "Lowering", node: fx.Node, a: list[Any]) -> None:
    low.emit(node, "above", [a[0]], numbers={"limit": 0.0})


def level_of(low: "Lowering", level: Any) -> Tensor:
    """Return the level of an elastic quantiser as it acts."""
    constant: Tensor = low.constant(level)
    return constant.detach().float().cpu().clamp(min=FLOOR).reshape(())


def last_zero(level: Tensor) -> float:
    """Return the largest number that an unsigned elastic quantiser maps to 0, as torch rounds."""
    limit = level / 2
    while True:
        following = torch.nextafter(limit, torch.tensor(torch.inf))
        if float(elastic_unsigned(following.reshape(1), level)) > 0:
            return float(limit)
        limit = following


def _scale(low: "Lowering", node: fx.Node, x: fx.Node, inner: str, level: Tensor) -> None:
    """Emit the product with a level; what looked at heads still does."""
    if x.name not in low.heads:
        low.emit(node, "affine", [inner], scale=level)
        return
    low.define_heads(node, low.heads[x.name], low.shape(x))
    low.append(node, "affine", [inner], scale=level)


@dataclass(frozen=True)
class Factor:
    """One side of a product: the value whose signs, or whose 0 and 1, count, and its scale."""

    value: str
    unit: bool
    scale: float


def _factor(low: "Lowering", node: fx.Node, x: fx.Node) -> Factor:
    """Return a value with two levels as bits and a scale, or refuse."""
    value, scale = low.value(x), torch.ones((), dtype=torch.float64)
    made = low.producer(value)
    while made is not None and made.only_scales:
        assert made.scale is not None
        scale = scale * made.scale.double().reshape(())
        value = made.inputs[0]
        made = low.producer(value)
    if made is not None and made.only_activates and made.activation == Activation("sign"):
        return Factor(made.inputs[0], False, float(scale))
    if made is not None and made.op == "round" and made.numbers["levels"] == 1:
        value = _halves(low, node, made)
        made = low.producer(value)
    if made is None or made.op != "above":
        low.refuse(node, "multiplies two computed tensors that do not both have two values")
    return Factor(value, True, float(scale))


def _halves(low: "Lowering", node: fx.Node, rounded: Node) -> str:
    """Return ``round(clamp(x, 0, 1))`` as a comparison with 1/2, which goes to 0."""
    limits = low.producer(rounded.inputs[0])
    unit = Activation("clamp", {"low": 0.0, "high": 1.0})
    if limits is None or not limits.only_activates or limits.activation != unit:
        low.refuse(node, "rounds numbers that may be other than 0 and 1")
    assert limits is not None
    return low.emit_inner(node, "above", [limits.inputs[0]], numbers={"limit": 0.5})


@handles(*MATMUL)
def _matmul(low: "Lowering", node: fx.Node, a: list[Any]) -> None:
    left, right = a[:2]
    if not low.is_value(left) or not low.is_value(right):
        low.refuse(node, "multiplies with a constant; the packed format has linear layers for that")
    first, second = (low.heads.get(item.name) for item in (left, right))
    scores = first is not None and first.order == "hts" and second == Heads(first.count, "hst")
    mixes = low.value(left) in low.stacks and second is not None and second.order == "hts"
    if not scores and not mixes:
        low.refuse(node, "multiplies two computed tensors other than the heads of an attention")
    one, other = _factor(low, node, left), _factor(low, node, right)
    if other.unit:
        low.refuse(node, "has a second factor that is not +-1")
    assert second is not None
    if scores:
        low.stacks.add(low.define(node))
    else:
        low.define_heads(node, Heads(second.count, "hts"), low.shape(right))
    numbers = {"heads": second.count, "transposed": int(scores), "unit": int(one.unit)}
    scale = None if one.scale * other.scale == 1 else torch.tensor(one.scale * other.scale)
    low.append(node, "binary_matmul", [one.value, other.value], numbers=numbers, scale=scale)
