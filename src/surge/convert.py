"""binarize_: turn the layers of any float model into 1-bit layers, in place."""

import warnings
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from torch import nn

from surge import bert, pitfalls
from surge.candidates import (
    LAZY,
    QUANTIZED,
    forms,
    is_foreign,
    shown,
    verdict_on,
    weight_count,
    weighted,
)
from surge.errors import (
    ConfigError,
    NoLayersMatchedError,
    SurgeError,
    SurgeWarning,
    UnsupportedLayerError,
)
from surge.layers import BinaryLayer, BinaryTransposedLinear
from surge.method import Method, check_options, get_method
from surge.patterns import Patterns, as_patterns, matches, require_each_matches


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
    remark: str = ""
    """What could not be looked for."""

    @property
    def binary(self) -> tuple[str, ...]:
        """Names of the layers that are binary now."""
        return tuple(row.name for row in self.rows if row.verdict == "binary")

    def __str__(self) -> str:
        """Draw the table."""
        name = max([len(shown(r.name)) for r in self.rows] + [5])
        kind = max([len(r.kind) for r in self.rows] + [4])
        lines = [f"{'layer':<{name}}  {'kind':<{kind}}  {'weights':>11}  verdict"]
        lines += [
            f"{shown(r.name):<{name}}  {r.kind:<{kind}}  {r.parameters:>11,}  {r.verdict}"
            for r in self.rows
        ]
        bits = sum(r.parameters for r in self.rows if r.verdict == "binary")
        total = sum(r.parameters for r in self.rows)
        lines.append(
            f"{len(self.binary)} of {len(self.rows)} layers are binary ({self.method}): "
            f"{bits:,} of {total:,} weights, {100 * bits / max(total, 1):.1f} %."
        )
        lines += [self.remark] if self.remark else []
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
    transformer: bool | None = None,
    example_input: Any = None,
    **method_options: Any,
) -> BinarizeReport:
    """Make the layers of a model binary, in place, and report what happened to each.

    Weights, hooks, names and devices stay; a float ``state_dict`` still loads. Everything is
    checked before anything changes.

    Args:
        model: Any module. Its Conv1d, Conv2d and Linear layers are candidates, and those of
            ``Conv1D`` as GPT-2 in transformers has it.
        method: Name of a registered method (see :func:`surge.list_methods`).
        skip: Patterns over module names to leave alone, such as ``"*downsample*"``.
        only: Patterns over module names; nothing else is touched.
        keep_first: Keep the first weighted layer, in order of registration, as it is.
        keep_last: Keep the last weighted layer as it is.
        embeddings: Also make ``nn.Embedding`` tables binary.
        transformer: Treat a transformers BERT as papers on binary BERT do: its word embeddings
            (not those of positions and token types) and the two products of every self-attention
            become binary as well. By default only for methods made for that, such as ``bit``.
        example_input: A batch for one forward, which finds layers that take no value below zero,
            and so only bits of +1, and those behind a GELU. A tuple or a dict is unpacked. Models
            of transformers, which cannot be traced, propose one themselves.
        **method_options: Options of the method, such as ``weight_bits=4`` for ``dorefa``.

    Example:
        >>> from torch import nn
        >>> from surge import binarize_
        >>> inner = nn.Linear(8, 8)
        >>> net = nn.Sequential(nn.Linear(4, 8), inner, nn.BatchNorm1d(8), nn.Linear(8, 2))
        >>> print(binarize_(net, "bireal"))
        layer  kind        weights  verdict
        0      Linear           32  float: first layer
        1      Linear           64  binary
        3      Linear           16  float: last layer
        1 of 3 layers are binary (bireal): 64 of 112 weights, 57.1 %.
    """
    kind = get_method(method)
    check_options(kind, method_options)
    _refuse_wrapped(model)
    whole = _wants_transformer(model, kind, transformer)
    products = bert.attentions(model) if whole else {}
    layers = dict(weighted(model))
    names = list(layers)
    known = [name for name in names if not is_foreign(layers[name])]
    if not known:
        raise NoLayersMatchedError(
            "binarize_ found no Conv1d, Conv2d, Linear or Embedding in this model."
        )
    words = {n: v for n in names if whole and (v := bert.embedding_verdict(n)) is not None}
    verdicts = {n: verdict_on(model, n, layers[n], embeddings or n in words) for n in names}
    verdicts |= {n: v for n, v in words.items() if verdicts[n] == "binary"}
    verdicts |= dict.fromkeys(products, "binary")
    _leave_out(verdicts, only, skip)
    ends = ((keep_first, known[0], "first"), (keep_last, known[-1], "last"))
    for keep, name, place in ends:
        if keep and verdicts[name] in ("binary", LAZY) and name not in words:
            verdicts[name] = f"float: {place} layer"
    _require_choice(verdicts, as_patterns(only, "only"))
    chosen = [name for name in names if verdicts[name] == "binary"]
    risks = pitfalls.find(model, set(chosen), example_input)
    rows = tuple(
        Row(name, type(layer).__name__, weight_count(layer), verdicts[name])
        for name, layer in {**layers, **products}.items()
    )
    special = {n: kind.behind_relu() for n in bert.behind_activation(model)} if whole else {}
    before = _convert_all(layers, chosen, method, method_options, special)
    changes = bert.Changes()
    if whole:
        changes.apply(model, kind, {name for name in products if verdicts[name] == "binary"})
    found = risks.sentences({n for n in chosen if _takes_signs(layers[n])})
    found += [
        f'The {place} layer "{shown(name)}" is binary, which usually costs several points of '
        f"accuracy; keep_{place}=True keeps it float."
        for _, name, place in ends
        if verdicts[name] == "binary" and name not in words
    ]
    try:
        for sentence in found:
            warnings.warn(sentence, SurgeWarning, stacklevel=2)
    except SurgeWarning:  # where warnings are errors, this call has failed
        changes.undo()
        _revert(before)
        raise
    return BinarizeReport(method, rows, tuple(found), risks.remark)


def _leave_out(verdicts: dict[str, str], only: Patterns | None, skip: Patterns) -> None:
    """Note what patterns leave out; each must match something."""
    wanted, unwanted = as_patterns(only, "only"), as_patterns(skip, "skip")
    require_each_matches(wanted, list(verdicts), "only")
    require_each_matches(unwanted, list(verdicts), "skip")
    for name in verdicts:
        if only is not None and not matches(name, wanted):
            verdicts[name] = "float: not in only="
        elif matches(name, unwanted):
            verdicts[name] = "float: in skip="


def _wants_transformer(model: nn.Module, method: type[Method], wanted: bool | None) -> bool:
    if wanted is None:
        return method.for_transformers and bert.is_bert(model)
    if wanted and not bert.is_bert(model):
        raise ConfigError("transformer=True: this model has no BERT encoder of transformers.")
    return wanted


def _refuse_wrapped(model: nn.Module) -> None:
    bases = {base.__name__ for base in type(model).__mro__}
    if bases & {"DataParallel", "DistributedDataParallel", "FullyShardedDataParallel"}:
        raise UnsupportedLayerError(
            f"binarize_ got a {type(model).__name__}; convert model.module first, then wrap it."
        )
    if "FSDPModule" in bases:
        raise UnsupportedLayerError(
            "binarize_ got a model that fully_shard has split; convert it first, then shard it."
        )


def _require_choice(verdicts: dict[str, str], only: tuple[str, ...]) -> None:
    """Raise unless something is left to convert, and every ``only`` pattern has its share."""
    for name, verdict in verdicts.items():
        if verdict in (LAZY, QUANTIZED):
            raise UnsupportedLayerError(
                f'binarize_ on "{shown(name)}": {verdict}; or leave it out with skip=.'
            )
    for pattern in only or ("*",):
        among = {name: v for name, v in verdicts.items() if matches(name, (pattern,))}
        if "binary" not in among.values():
            where = f' for only="{pattern}"' if only else ""
            reasons = "; ".join(f"{shown(n)} ({v})" for n, v in list(among.items())[:6])
            raise NoLayersMatchedError(f"binarize_ has no layer to convert{where}: {reasons}.")


def _takes_signs(layer: nn.Module) -> bool:
    """Return whether a layer's inputs become +-1, not steps of [0, 1]."""
    assert isinstance(layer, BinaryLayer)
    return layer.method.bits[1] == 1 and not getattr(layer.method, "unit_inputs", False)


def _convert_all(
    layers: dict[str, nn.Module],
    chosen: list[str],
    method: str,
    options: dict[str, Any],
    special: dict[str, dict[str, Any]],
) -> dict[nn.Module, type[nn.Module]]:
    """Change the class of every chosen layer; undo all of it if a method refuses one.

    ``special`` has more options for some of the layers. Return the classes they had.
    """
    before = {layers[name]: type(layers[name]) for name in chosen}
    known = forms()
    for layer, kind in before.items():
        layer.__class__ = known[kind]
    _turn_weights(before)
    for name in chosen:
        layer = layers[name]
        assert isinstance(layer, BinaryLayer)
        try:
            layer.bind(method, {**options, **special.get(name, {})})
        except BaseException as error:
            _revert(before)
            if isinstance(error, SurgeError):
                raise type(error)(f'binarize_ on "{shown(name)}": {error}') from error
            raise
    return before


def _turn_weights(layers: Iterable[nn.Module]) -> None:
    """Turn the weights around that a float layer has as ``[in, out]``; a tied one turns once."""
    for weight in {layer.weight for layer in layers if isinstance(layer, BinaryTransposedLinear)}:
        weight.data = weight.data.T


def _revert(before: dict[nn.Module, type[nn.Module]]) -> None:
    _turn_weights(before)
    for layer, original in before.items():
        for added in ("method", "auxiliary"):
            layer._modules.pop(added, None)
        sizes = ("in_features", "out_features") if isinstance(layer, BinaryTransposedLinear) else ()
        for added in ("duties", *sizes):
            vars(layer).pop(added, None)
        layer.__class__ = original
