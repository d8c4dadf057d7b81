"""binarize_: turn the layers of any float model into 1-bit layers, in place."""

import warnings
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from torch import nn

from surge import pitfalls
from surge.errors import (
    ConfigError,
    NoLayersMatchedError,
    SurgeError,
    SurgeWarning,
    UnsupportedLayerError,
)
from surge.layers import BinaryConv1d, BinaryConv2d, BinaryEmbedding, BinaryLayer, BinaryLinear
from surge.layers.base import check_convolution
from surge.layers.linear import check_embedding
from surge.method import check_options, get_method
from surge.patterns import Patterns, as_patterns, matches, require_each_matches

BINARY: dict[type[nn.Module], type[BinaryLayer]] = {
    nn.Conv1d: BinaryConv1d,
    nn.Conv2d: BinaryConv2d,
    nn.Linear: BinaryLinear,
    nn.Embedding: BinaryEmbedding,
}


@dataclass(frozen=True)
class Row:
    """One weighted layer of the report."""

    name: str
    kind: str
    parameters: int
    verdict: str
    """``binary``, or why the layer stayed as it was."""


@dataclass(frozen=True)
class BinarizeReport:
    """What became binary, what did not and why; print it."""

    method: str
    rows: tuple[Row, ...]
    warnings: tuple[str, ...] = field(default=())

    @property
    def binary(self) -> tuple[str, ...]:
        """Names of the layers that are binary now."""
        return tuple(row.name for row in self.rows if row.verdict == "binary")

    def __str__(self) -> str:
        """Draw the table."""
        name = max([len(r.name) for r in self.rows] + [5])
        kind = max([len(r.kind) for r in self.rows] + [4])
        lines = [f"{'layer':<{name}}  {'kind':<{kind}}  {'weights':>11}  verdict"]
        lines += [
            f"{r.name:<{name}}  {r.kind:<{kind}}  {r.parameters:>11,}  {r.verdict}"
            for r in self.rows
        ]
        bits = sum(r.parameters for r in self.rows if r.verdict == "binary")
        total = sum(r.parameters for r in self.rows)
        lines.append(
            f"{len(self.binary)} of {len(self.rows)} layers are binary ({self.method}): "
            f"{bits:,} of {total:,} weights, {100 * bits / max(total, 1):.1f} %."
        )
        return "\n".join(lines)


def binarize_(
    model: nn.Module,
    method: str,
    *,
    skip: Patterns = (),
    only: Patterns | None = None,
    keep_first: bool = True,
    keep_last: bool = True,
    embeddings: bool = False,
    **method_options: Any,  # noqa: ANN401
) -> BinarizeReport:
    """Make the layers of a model binary, in place, and report what happened to each.

    Weights, hooks, names and devices stay; a float ``state_dict`` still loads. Everything is
    checked before anything changes.

    Args:
        model: Any module. Its Conv1d, Conv2d and Linear layers are candidates.
        method: Name of a registered method (see :func:`surge.list_methods`).
        skip: Patterns over module names to leave alone, such as ``"*downsample*"``.
        only: Patterns over module names; nothing else is touched.
        keep_first: Keep the first weighted layer, in order of registration, as it is.
        keep_last: Keep the last weighted layer as it is.
        embeddings: Also make ``nn.Embedding`` tables binary.
        **method_options: Options of the method, such as ``weight_bits=4`` for ``dorefa``.

    Example:
        >>> from torch import nn
        >>> from surge import binarize_
        >>> net = nn.Sequential(nn.Linear(4, 8), nn.Linear(8, 8), nn.BatchNorm1d(8), nn.Linear(8, 2))
        >>> print(binarize_(net, "bireal"))
        layer  kind        weights  verdict
        0      Linear           32  float: first layer
        1      Linear           64  binary
        3      Linear           16  float: last layer
        1 of 3 layers are binary (bireal): 64 of 112 weights, 57.1 %.
    """
    check_options(get_method(method), method_options)
    _refuse_wrapped(model)
    layers = dict(_weighted(model))
    if not layers:
        raise NoLayersMatchedError(
            "binarize_ found no Conv1d, Conv2d, Linear or Embedding in this model."
        )
    names = list(layers)
    chosen_only, chosen_skip = as_patterns(only, "only"), as_patterns(skip, "skip")
    require_each_matches(chosen_only, names, "only")
    require_each_matches(chosen_skip, names, "skip")
    verdicts = {name: _unsuitable(model, name, layers[name], embeddings) for name in names}
    for name in names:
        if chosen_only and not matches(name, chosen_only):
            verdicts[name] = "float: not in only="
        elif matches(name, chosen_skip):
            verdicts[name] = "float: in skip="
    ends = ((keep_first, names[0], "first"), (keep_last, names[-1], "last"))
    for keep, name, place in ends:
        if keep and verdicts[name] == "binary":
            verdicts[name] = f"float: {place} layer"
    chosen = [name for name in names if verdicts[name] == "binary"]
    if not chosen:
        reasons = "; ".join(f"{n} ({v})" for n, v in list(verdicts.items())[:6])
        raise NoLayersMatchedError(f"binarize_ has no layer left to convert: {reasons}.")
    found = list(pitfalls.find(model, set(chosen)))
    found += [
        f'The {place} layer "{name}" is binary, which usually costs several points of accuracy; '
        f"keep_{place}=True keeps it float."
        for _, name, place in ends
        if verdicts[name] == "binary"
    ]
    rows = tuple(
        Row(name, type(layer).__name__, _weight_count(layer), verdicts[name])
        for name, layer in layers.items()
    )
    _convert_all(layers, chosen, method, method_options)
    for sentence in found:
        warnings.warn(sentence, SurgeWarning, stacklevel=2)
    return BinarizeReport(method, rows, tuple(found))


def _weighted(model: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    """Yield every candidate, its unusable relatives included; shared modules come once."""
    for name, module in model.named_modules():
        if isinstance(module, BinaryLayer):
            raise ConfigError(
                f'"{name}" is binary already ({module.method.describe()}); binarize_ works on '
                "float models only."
            )
        if isinstance(module, tuple(BINARY)) or _is_quantized(module):
            yield name, module


def _refuse_wrapped(model: nn.Module) -> None:
    if isinstance(model, nn.DataParallel | nn.parallel.DistributedDataParallel):
        raise UnsupportedLayerError(
            f"binarize_ got a {type(model).__name__}; convert model.module first, then wrap it."
        )


def _is_quantized(module: nn.Module) -> bool:
    place = type(module).__module__
    return "quantized" in place or "torch.ao.nn" in place


def _unsuitable(model: nn.Module, name: str, layer: nn.Module, embeddings: bool) -> str:
    """Return ``binary``, or the reason why this layer cannot become binary."""
    if _is_quantized(layer):
        return "unsupported: already quantised"
    if type(layer) not in BINARY:
        if isinstance(layer, nn.modules.lazy.LazyModuleMixin):
            return "unsupported: lazy, run the model once before"
        return f"unsupported: a subclass of {_base(layer).__name__}"
    if name.endswith("out_proj") and isinstance(
        model.get_submodule(name.rpartition(".")[0]), nn.MultiheadAttention
    ):
        return "unsupported: MultiheadAttention uses its weight directly"
    if hasattr(layer, "parametrizations"):
        return "unsupported: parametrised"
    try:
        if isinstance(layer, nn.Embedding):
            check_embedding(layer)
            return "binary" if embeddings else "float: embedding (embeddings=True converts it)"
        if not isinstance(layer, nn.Linear):
            check_convolution(layer)
    except UnsupportedLayerError as error:
        return f"unsupported: {error}"
    return "binary"


def _base(layer: nn.Module) -> type[nn.Module]:
    return next(kind for kind in BINARY if isinstance(layer, kind))


def _weight_count(layer: nn.Module) -> int:
    weight = getattr(layer, "weight", None)
    lazy = isinstance(weight, nn.parameter.UninitializedParameter)
    return weight.numel() if isinstance(weight, nn.Parameter) and not lazy else 0


def _convert_all(
    layers: dict[str, nn.Module], chosen: list[str], method: str, options: dict[str, Any]
) -> None:
    """Change the class of every chosen layer; undo all of it if a method refuses one."""
    done: list[nn.Module] = []
    for name in chosen:
        layer = layers[name]
        original = type(layer)
        layer.__class__ = BINARY[original]
        assert isinstance(layer, BinaryLayer)
        try:
            layer.bind(method, options)
        except SurgeError as error:
            layer.__class__ = original
            for other in done:
                _revert(other)
            raise type(error)(f'binarize_ on "{name}": {error}') from error
        done.append(layer)


def _revert(layer: nn.Module) -> None:
    original = next(kind for kind, binary in BINARY.items() if type(layer) is binary)
    del layer._modules["method"], layer._modules["auxiliary"]
    layer.__class__ = original
