"""One small function per torch operator that a packed graph can express."""

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, fx

from surge.export.builder import Builder
from surge.export.graph import Activation, over, plus, times

Handler = Callable[[Builder, fx.Node, list[Any]], Any]
HANDLERS: dict[str, Handler] = {}


MOST = 2**28
"""The largest whole number that stands for a size in a file."""


def handles(*targets: str) -> Callable[[Handler], Handler]:
    """Register a function for torch operators."""

    def register(function: Handler) -> Handler:
        HANDLERS.update(dict.fromkeys(targets, function))
        return function

    return register


def as_list(value: Any) -> list[int]:
    """Return a number, or several, as a list."""
    return list(value) if isinstance(value, list | tuple) else [int(value)]


def pair(value: Any) -> list[int]:
    """Return two whole numbers, however torch abbreviates them."""
    numbers = [int(item) for item in as_list(value)]
    return numbers * 2 if len(numbers) == 1 else numbers


def window(
    kernel: Any, stride: Any, padding: Any, dilation: Any, *, flat: bool = False
) -> dict[str, Any]:
    """Return a window's numbers; a flat one, of sequences, has a single row."""
    sizes = {"kernel": list(kernel), "stride": stride, "padding": padding, "dilation": dilation}
    if not flat:
        return {key: pair(value) for key, value in sizes.items()}
    return {key: [0 if key == "padding" else 1, pair(value)[0]] for key, value in sizes.items()}


@handles("aten.batch_norm.default")
def _batch_norm(low: Builder, node: fx.Node, a: list[Any]) -> None:
    x, weight, bias, mean, variance, training, _, eps, _ = a
    if training or mean is None:
        low.refuse(node, "uses the statistics of the batch; the packed format needs running ones")
    images = len(low.shape(x)) == 4
    source = low.as_sequence(node, x) if len(low.shape(x)) == 3 else low.value(x)
    weight, bias, centre, spread = map(low.floats, (weight, bias, mean, variance))

    def arithmetic(t: Tensor) -> Tensor:
        # In the shape the network has it: torch's loops for images and for rows may differ.
        shaped = t.T.reshape(1, t.shape[1], -1, 1) if images else t
        normed = F.batch_norm(shaped, centre, spread, weight, bias, eps=eps)
        return normed[0, :, :, 0].T if images else normed

    gamma = torch.ones_like(centre) if weight is None else weight
    beta = torch.zeros_like(centre) if bias is None else bias
    scale = gamma.double() / (spread.double() + eps).sqrt()
    low.emit(
        node,
        "affine",
        [source],
        scale=scale.float(),
        bias=(beta.double() - centre.double() * scale).float(),
        arithmetic=[arithmetic],
    )


def _repeats(low: Builder, wide: Any, narrow: Any) -> bool:
    """Return whether one value can be repeated to the shape of another: a channel, or a pixel."""
    a, b = low.shape(wide), low.shape(narrow)
    if len(a) != len(b):
        return False
    fits = all(size in (1, full) for size, full in zip(b[1:], a[1:], strict=True))
    axis = low.channel_axis(low.value(wide))
    spatial = [(b[i], a[i]) for i in range(1, len(a)) if i != axis]
    whole = all(size == full for size, full in spatial) or all(size == 1 for size, _ in spatial)
    return fits and whole


def add_rows(low: Builder, node: fx.Node, left: Any, right: Any) -> bool:
    """Add one row of a constant to every token, if that is what it has; return whether it is."""
    x, constant = (left, right) if low.is_value(left) else (right, left)
    tensor, shape = low.constant(constant), low.shape(x)
    wanted = isinstance(tensor, Tensor) and len(shape) == 3 and low.value(x) not in low.sequences
    if not wanted or shape[1] == 1 or tuple(tensor.shape) not in (shape[1:], (1, *shape[1:])):
        return False
    name = constant.name if isinstance(constant, fx.Node) else ""
    table, first = low.tables.get(name, (tensor.reshape(shape[1:]), 0))
    weight = table.detach().float().cpu()
    low.emit(node, "add_rows", [x], numbers={"first": first}, weight=weight)
    return True


@handles("aten.add.Tensor", "aten.add_.Tensor", "aten.sub.Tensor")
def _add(low: Builder, node: fx.Node, a: list[Any]) -> None:
    left, right, alpha = a
    if node.meta["val"].dtype == torch.bool:
        low.refuse(node, "adds truth values")
    sign = -1 if "sub" in str(node.target) else 1
    if low.is_value(left) and low.is_value(right):
        same = low.shape(left) == low.shape(right)
        if alpha == 1 and sign == 1 and same:
            low.emit(node, "affine", [left], residual=low.value(right))
        elif alpha == 1 and _repeats(low, left, right):
            low.emit(node, "subtract" if sign < 0 else "add", [left, right])
        elif alpha == 1 and sign == 1 and _repeats(low, right, left):
            low.emit(node, "add", [right, left])
        else:
            low.refuse(node, "combines two tensors whose sizes do not fit, or with a factor")
    elif sign * alpha == 1 and add_rows(low, node, left, right):
        return
    elif low.is_value(left):
        source, vector = low.vector(node, low.constant(right) * (sign * alpha), left)
        low.emit(node, "affine", [source], bias=vector, arithmetic=[plus(vector)])
    else:
        parts = {} if sign * alpha == 1 else {"scale": torch.tensor(float(sign * alpha))}
        source, vector = low.vector(node, low.constant(left), right)
        low.emit(node, "affine", [source], bias=vector, **parts)


@handles("aten.mul.Tensor", "aten.div.Tensor")
def _multiply(low: Builder, node: fx.Node, a: list[Any]) -> None:
    left, right = a
    divides = "div" in str(node.target)
    if low.is_value(left) and low.is_value(right):
        if not divides and not _repeats(low, left, right):
            left, right = right, left
        if not _repeats(low, left, right):
            low.refuse(node, "combines two computed tensors whose sizes do not fit")
        low.emit(node, "divide" if divides else "multiply", [left, right])
        return
    if divides and not low.is_value(left):
        low.refuse(node, "divides by a computed tensor")
    value, factor = (left, right) if low.is_value(left) else (right, left)
    literal = low.constant(factor)
    constant = torch.as_tensor(literal, dtype=torch.float32)
    previous = low.nodes[-1] if low.nodes else None
    if (
        divides
        and constant.numel() == 1
        and previous is not None
        and previous.output == value.name  # and nobody reads it by another name
        and previous.numbers.get("divisor") == 1
        and len(value.users) == 1
        and 1 <= (whole := float(constant.detach())) <= MOST
        and whole.is_integer()
    ):
        previous.numbers["divisor"] = int(whole)
        low.alias[node.name] = previous.output
        return
    source, scale = low.vector(node, literal, value)
    arithmetic = times(scale)
    if divides:
        arithmetic, scale = over(scale), (1 / scale.double()).float()
    low.emit(node, "affine", [source], scale=scale, arithmetic=[arithmetic])


@handles("surge.round_levels.default")
def _round(low: Builder, node: fx.Node, a: list[Any]) -> None:
    x, levels = a
    whole = low.emit_inner(node, "round", [low.value(x)], numbers={"levels": int(levels)})
    low.emit(node, "affine", [whole], scale=torch.tensor(1 / int(levels)))


@handles("surge.ternary.default")
def _ternary(low: Builder, node: fx.Node, a: list[Any]) -> None:
    if not low.is_value(a[1]) or not _repeats(low, a[0], a[1]):
        low.refuse(node, "has a threshold that is not computed per sample")
    low.emit(node, "ternary", [a[0], a[1]])


@handles("aten.sqrt.default")
def _sqrt(low: Builder, node: fx.Node, a: list[Any]) -> None:
    low.emit(node, "square_root", [a[0]])


SIGNS = (
    "surge.sign_identity.default",
    "surge.sign_clipped.default",
    "surge.sign_bireal.default",
    "surge.sign_ede.default",
    "surge.sign_swish.default",
)


@handles(*SIGNS)
def _sign(low: Builder, node: fx.Node, a: list[Any]) -> None:
    low.emit(node, "affine", [a[0]], activation=Activation("sign"))
