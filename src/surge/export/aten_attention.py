"""Heads of an attention, and the products of two computed values.

Heads ``[N, heads, tokens, size]`` are no values of their own: they are rows of tokens, looked at
in another order, and only signs and products may look at them like that.
"""

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, fx

from surge.export.aten import SIGNS, handles
from surge.export.aten_activations import ACTIVATIONS
from surge.export.builder import Builder, Heads
from surge.export.graph import Activation, Node
from surge.layers.elastic import FLOOR, elastic_unsigned

ELASTIC = ("surge.elastic_signed.default", "surge.elastic_unsigned.default")
BOOLEAN = "surge.bool_clipped.default"
MATMUL = ("aten.matmul.default", "surge.two_level_product.default")
MOVES = ("aten.transpose.int", "aten.permute.default")
VIEWS = (
    "aten.view.default",
    "aten.reshape.default",
    "aten.flatten.using_ints",
    "aten.unflatten.int",
)
COPIES = ("aten.alias.default", "aten.clone.default", "aten.contiguous.default")
KEPT = (*COPIES, "aten.detach.default", "aten.dropout.default", "aten.to.dtype")
SCALES = ("aten.mul.Tensor", "aten.div.Tensor")
SDPA = "aten.scaled_dot_product_attention.default"
TAKEN = ("aten.unbind.int", "aten.select.int", "<built-in function getitem>")
HEADED = {SDPA, *TAKEN, *SIGNS, *ELASTIC, *MATMUL, *MOVES, *VIEWS, *KEPT}
"""Operators that may look at heads."""
STACKED = {
    *HEADED,
    *ACTIVATIONS,
    *SCALES,
    BOOLEAN,
    "aten.add.Tensor",
    "aten.sub.Tensor",
    "aten.eq.Scalar",
    "aten.layer_norm.default",
    "aten.linalg_vector_norm.default",
    "aten.linear.default",
    "aten.mean.dim",
    "aten.slice.Tensor",
    "aten.softmax.int",
    "aten.unsqueeze.default",
    "surge.round_levels.default",
    "surge_export.binary_product.default",
    "surge_export.real_product.default",
}
"""Operators for which four dimensions need not be those of an image."""


def check_layout(low: Builder, node: fx.Node, arguments: list[Any]) -> None:
    """Refuse operators that would take heads, or a stack of matrices, for an image."""
    target = str(node.target)
    for item in arguments:
        if not low.is_value(item):
            continue
        by_number = target in SCALES and all(
            other is item or isinstance(other, int | float) for other in arguments
        )
        if item.name in low.heads and target not in HEADED and not by_number:
            low.refuse(node, "has no operator in the packed format for the heads of an attention")
        if item.name in low.grouped and target not in (*MOVES, *VIEWS, *COPIES):
            low.refuse(node, "has no operator in the packed format for groups of channels")
        if low.value(item) in low.stacks and target not in STACKED:
            low.refuse(node, "has no operator in the packed format for a stack of matrices")


def as_heads(low: Builder, node: fx.Node, x: fx.Node, after: tuple[int, ...]) -> bool:
    """Split features into heads, or join them again; return whether a reshape does that."""
    known, base = low.heads.get(x.name), low.shape(x)
    if known is not None:
        if known.order != "nths" or after != base:
            low.refuse(node, f"joins heads in another order than tokens, heads; to {after}")
        low.alias[node.name] = low.value(x)
        return True
    splits = len(base) == 3 and len(after) in (4, 5) and after[:2] == base[:2]
    if not splits or low.value(x) in low.sequences or math.prod(after[2:]) != base[2]:
        return False
    low.alias[node.name] = low.value(x)
    parts = after[2] if len(after) == 5 else 1
    low.heads[node.name] = Heads(after[-2], "nths" if len(after) == 4 else "ntphs", parts)
    return True


def select_part(low: Builder, node: fx.Node, x: fx.Node, axis: int, index: int) -> bool:
    """Take queries, keys or values of what has them side by side; return whether it does."""
    known = low.heads.get(x.name)
    if known is None:
        return False
    order = known.order
    if order[axis] != "p":
        low.refuse(node, "selects from the heads of an attention")
    batch, tokens, features = low.shape(x)
    size, index = features // known.parts, index % known.parts
    heads = Heads(known.count, order.replace("p", ""))
    low.define_heads(node, heads, (batch, tokens, size))
    sides = {"before": -index * size, "after": (index + 1 - known.parts) * size}
    low.append(node, "pad_channels", [low.value(x)], numbers=sides)
    return True


@handles(*MOVES)
def _move(low: Builder, node: fx.Node, a: list[Any]) -> None:
    known, rank = low.heads.get(a[0].name), node.meta["val"].dim()
    axes = list(range(rank))
    if "permute" in str(node.target):
        axes = [int(axis) % rank for axis in a[1]]
    else:
        one, other = int(a[1]) % rank, int(a[2]) % rank
        axes[one], axes[other] = other, one
    if a[0].name in low.grouped:
        groups, second = low.grouped[a[0].name]
        if axes != [0, 2, 1, 3, 4]:
            low.refuse(node, "moves groups of channels in another way than a shuffle")
        low.alias[node.name] = low.value(a[0])
        low.grouped[node.name] = (groups, not second)
        return
    if known is None and axes == [0, 2, 1]:
        # Rows of tokens are a sequence seen from the side: the engine has both alike.
        value = low.value(a[0])
        low.rename(node, value, channels_first=value not in low.sequences)
        return
    if known is None and axes in ([0, 2, 3, 1], [0, 3, 1, 2]):
        value, last = low.value(a[0]), axes[1] == 3
        if (value in low.stacks) == last:
            # The channels of an image are last in the engine, whatever torch calls them.
            low.rename(node, value, channels_first=last)
            return
    if known is None:
        low.refuse(node, "moves dimensions in a way that the packed format has no operator for")
    low.alias[node.name] = low.value(a[0])
    order = "".join(known.order[axis] for axis in axes)
    low.heads[node.name] = Heads(known.count, order, known.parts)


@handles("surge.elastic_signed.default")
def _elastic_signed(low: Builder, node: fx.Node, a: list[Any]) -> None:
    signs = low.emit_inner(node, "affine", [low.value(a[0])], activation=Activation("sign"))
    _scale(low, node, a[0], signs, level_of(low, a[1]))


@handles("surge.elastic_unsigned.default")
def _elastic_unsigned(low: Builder, node: fx.Node, a: list[Any]) -> None:
    level = level_of(low, a[1])
    bits = low.emit_inner(node, "above", [low.value(a[0])], numbers={"limit": last_zero(level)})
    _scale(low, node, a[0], bits, level)


@handles(BOOLEAN)
def _boolean(low: Builder, node: fx.Node, a: list[Any]) -> None:
    low.emit(node, "above", [a[0]], numbers={"limit": 0.0})


def level_of(low: Builder, level: Any) -> Tensor:
    """Return the level of an elastic quantiser as it acts."""
    constant: Tensor = low.floats(level)
    return constant.clamp(min=FLOOR).reshape(())


def last_zero(level: Tensor) -> float:
    """Return the largest number that an unsigned elastic quantiser maps to 0, as torch rounds."""
    limit = level / 2
    while True:
        following = torch.nextafter(limit, torch.tensor(torch.inf))
        if float(elastic_unsigned(following.reshape(1), level)) > 0:
            return float(limit)
        limit = following


def _scale(low: Builder, node: fx.Node, x: fx.Node, inner: str, level: Tensor) -> None:
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


def _factor(low: Builder, node: fx.Node, x: fx.Node) -> Factor | None:
    """Return a value with two levels as bits and a scale; None if it is another."""
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
        halves = _halves(low, node, made)
        return None if halves is None else Factor(halves, True, float(scale))
    return Factor(value, True, float(scale)) if made is not None and made.op == "above" else None


def _halves(low: Builder, node: fx.Node, rounded: Node) -> str | None:
    """Return ``round(clamp(x, 0, 1))`` as a comparison with 1/2, which goes to 0."""
    limits = low.producer(rounded.inputs[0])
    unit = Activation("clamp", {"low": 0.0, "high": 1.0})
    if limits is None or not limits.only_activates or limits.activation != unit:
        return None
    return low.emit_inner(node, "above", [limits.inputs[0]], numbers={"limit": 0.5})


@handles(*MATMUL)
def _matmul(low: Builder, node: fx.Node, a: list[Any]) -> None:
    left, right = a[:2]
    if not low.is_value(left) or not low.is_value(right):
        low.refuse(node, "multiplies with a constant; the packed format has linear layers for that")
    first, second = (low.heads.get(item.name) for item in (left, right))
    scores = first is not None and first.order == "nhts" and second == Heads(first.count, "nhst")
    mixes = low.value(left) in low.stacks and second is not None and second.order == "nhts"
    if not scores and not mixes:
        low.refuse(node, "multiplies two computed tensors other than the heads of an attention")
    assert second is not None
    if scores:
        low.stacks.add(low.define(node))
    else:
        shape = (*low.shape(left)[::2], low.shape(right)[2])
        low.define_heads(node, Heads(second.count, "nhts"), shape)
    numbers = {"heads": second.count, "transposed": int(scores)}
    one, other = _factor(low, node, left), _factor(low, node, right)
    if one is None or other is None or other.unit:
        low.append(node, "matmul", [low.value(left), low.value(right)], numbers=numbers)
        return
    scale = None if one.scale * other.scale == 1 else torch.tensor(one.scale * other.scale)
    numbers["unit"] = int(one.unit)
    low.append(node, "binary_matmul", [one.value, other.value], numbers=numbers, scale=scale)


@handles(SDPA)
def _attention(low: Builder, node: fx.Node, a: list[Any]) -> None:
    *parts, mask, dropped, causal, scale, grouped = a
    heads = low.heads.get(parts[0].name)
    alike = all(low.heads.get(part.name) == heads for part in parts)
    if heads is None or heads.order != "nhts" or not alike or grouped:
        low.refuse(node, "has other inputs than three values seen as heads")
    count = heads.count
    queries, keys, values = (low.shape(part) for part in parts)
    masked = low.is_value(mask) and mask.meta["val"].is_floating_point()
    hides = low.shape(mask) != (queries[0], 1, 1, keys[1]) if masked else not _is_open(low, mask)
    if dropped or causal or hides:
        low.refuse(node, "drops scores, or masks them other than by a number added per key")
    if scale is None:
        scale = (queries[2] // count) ** -0.5
    sides = [low.value(part) for part in parts]
    scores = low.inner(node, (queries[0], count, queries[1], keys[1]))
    low.stacks.add(scores)
    low.append(
        node,
        "matmul",
        sides[:2],
        output=scores,
        numbers={"heads": count, "transposed": 1},
        scale=torch.tensor(float(scale)),
    )
    terms = [low.value(mask)] if masked else []
    shares = low.emit_inner(node, "softmax", [scores, *terms])
    low.define_heads(node, heads, (*queries[:2], values[2]))
    low.append(node, "matmul", [shares, sides[2]], numbers={"heads": count, "transposed": 0})


def _is_open(low: Builder, mask: Any) -> bool:
    """Return whether a mask, known now, hides nothing."""
    if mask is None:
        return True
    if low.is_value(mask):
        return False
    known: Tensor = low.constant(mask)
    return bool(known.all() if known.dtype == torch.bool else (known == 0).all())
