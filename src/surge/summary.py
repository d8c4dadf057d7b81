"""summary: what a model costs, layer by layer: bits, bytes on disk, MACs, BOPs, OPs."""

import math
import weakref
from collections.abc import Iterator
from dataclasses import dataclass, field, fields
from inspect import getattr_static
from typing import Any, cast, get_args

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _NormBase
from torch.nn.modules.pooling import _AdaptiveAvgPoolNd, _AvgPoolNd

from surge.candidates import is_quantized
from surge.compensation.dry_run import call, evaluating
from surge.cost import FLOAT_BYTES, Cost, Rest, Summary, SummaryRow
from surge.errors import ConfigError, UnsupportedLayerError, did_you_mean
from surge.layers import BinaryLayer
from surge.layers.elastic import Elastic
from surge.macs import counted_products
from surge.patterns import Patterns, as_patterns, matches, require_each_matches
from surge.pitfalls import NORMS

__all__ = ["Cost", "Rest", "Summary", "SummaryRow", "summary"]

REST_BYTES: dict[Rest, int] = {"fp32": 4, "fp16": 2, "int8": 1}
REAL = 32
PRODUCTS = (nn.Conv1d, nn.Conv2d, nn.Conv3d, nn.Linear)
LOOKUPS = (nn.Embedding, nn.EmbeddingBag)
AVERAGES = (_AvgPoolNd, _AdaptiveAvgPoolNd)


def summary(
    model: nn.Module, example_input: Any, *, rest: Rest = "fp32", exclude: Patterns = ()
) -> Summary:
    """Count what a model stores and computes, by one forward in eval mode without side effects.

    On disk: weights of k bits take k bits each, without gaps, rounded up to a byte once per
    layer, and one fp32 scale per output feature, which learnt levels of inputs are part of. Other
    tensors of two and more dimensions are stored as ``rest`` says (int8: one fp32 scale per row),
    vectors in fp32. A BatchNorm is two values per channel, and takes over scale and bias of a layer
    whose output it gets directly. What training alone needs (auxiliary paths, schedules) is not
    counted. A packed file has this size, less ``folded_bytes``: slopes and shifts between binary
    layers that became part of thresholds. Values do not matter here: a file is one number a layer
    smaller where a learnt centre of inputs is exactly 0, as before training.

    MACs are those of all products for the whole example, so give it a batch of one. Products that
    belong to no layer of torch, as those of two activations in attention, make a row of the module
    that computes them; recurrent layers are not counted.

    Args:
        model: Any module, float or binarised.
        example_input: A tensor, a tuple of arguments, or a dict of keyword arguments.
        rest: How real weights are stored: ``fp32``, ``fp16`` or ``int8``.
        exclude: Patterns over module names to leave out, such as ``"fc"``.

    Example:
        >>> import torch
        >>> from torch import nn
        >>> from surge import binarize_
        >>> inner = nn.Linear(8, 8)
        >>> net = nn.Sequential(nn.Linear(4, 8), inner, nn.BatchNorm1d(8), nn.Linear(8, 2))
        >>> report = binarize_(net, "bireal")
        >>> print(summary(net, torch.zeros(1, 4)))
        layer  kind          bits   parameters  bytes  MACs  OPs
        0      Linear        32/32          40    160    32   32
        1      BinaryLinear  1/1            72      8    64    1
        2      BatchNorm1d   32/32          16     64     0    0
        3      Linear        32/32          18     72    16   16
        total                              146    304   112   49
        Parameters: 64 in 1 bit, 82 real.
        On disk: 304 bytes (0.00 MB, 0.00 MiB), real weights in fp32; 1.9 times smaller ...
        OPs: 48 real MACs + 64 BOPs / 64 = 49.
    """
    if rest not in REST_BYTES:
        accepted = get_args(Rest)
        near = did_you_mean(str(rest), accepted)
        raise ConfigError(f'rest="{rest}" is not known.{near} Accepted: {", ".join(accepted)}.')
    units = _units(model)
    patterns = as_patterns(exclude, "exclude")
    uses = _run(model, units, example_input)
    units = {m: name for name, m in model.named_modules() if m in units or uses[m].macs}
    require_each_matches(patterns, list(units.values()), "exclude")
    seen: set[tuple[int, int]] = set()
    rows = tuple(
        _row(name, module, uses, rest, seen)
        for module, name in units.items()
        if not matches(name, patterns)
    )
    totals = {item.name: sum(getattr(row, item.name) for row in rows) for item in fields(Cost)}
    return Summary(rows=rows, rest=rest, excluded=patterns, **totals)


def _is_closed(module: nn.Module) -> bool:
    """Return whether a module is one layer, whatever modules it is made of."""
    closed = isinstance(module, BinaryLayer | nn.MultiheadAttention)
    return closed or nn.utils.parametrize.is_parametrized(module) or is_quantized(module)


def _units(model: nn.Module) -> dict[nn.Module, str]:
    """Return the layers to count with their names, shared ones once."""
    units: dict[nn.Module, str] = {}
    inside: set[nn.Module] = set()
    for name, module in model.named_modules():
        if module in inside:
            continue
        if isinstance(module, nn.modules.lazy.LazyModuleMixin):
            raise UnsupportedLayerError(
                f'summary: "{name}" is a lazy layer, whose size is not known yet; run the model '
                "once before."
            )
        if _is_closed(module):
            inside.update(module.modules())
        if _is_closed(module) or isinstance(module, AVERAGES) or any(_kept(module)):
            units[module] = name
    return units


def _kept(module: nn.Module) -> Iterator[tuple[str, Tensor]]:
    """Yield the tensors of its own that a layer needs after training."""
    binary = isinstance(module, BinaryLayer)
    yield from module.named_parameters(recurse=_is_closed(module) and not binary)
    for name, buffer in module.named_buffers(recurse=False):
        if name not in module._non_persistent_buffers_set:
            yield name, buffer
    if isinstance(module, BinaryLayer):
        factor = module.method.output_scale()
        for name, tensor in (*module.method.named_parameters(), *module.method.named_buffers()):
            # The output scale is part of the stored scale.
            if name not in module.method.dropped and tensor is not factor:
                yield f"method.{name}", tensor


@dataclass
class _Use:
    """What the hooks saw of one layer."""

    calls: int = 0
    macs: int = 0
    bit_macs: int = 0
    """Those of ``macs`` that are products of bits outside of binary layers."""
    elementwise: int = 0
    norms: list[nn.Module] = field(default_factory=list)
    """The BatchNorms that took an output of this layer as it was."""


def _run(model: nn.Module, units: dict[nn.Module, str], example: Any) -> dict[nn.Module, _Use]:
    """Call the model once and note what every layer did."""
    uses = {module: _Use() for module in model.modules()}
    made: dict[int, tuple[weakref.ref[Tensor], int, _Use]] = {}

    def before(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        source = _first(args, kwargs)
        output, version, use = made.get(id(source), (None, 0, None))
        alive = output() if output else None
        # An operation in place keeps the tensor, but not its version.
        if use and alive is not None and alive is source and alive._version == version:
            use.norms.append(module)

    def after(
        module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any
    ) -> None:
        use = uses[module]
        use.calls += 1
        if not isinstance(output, Tensor):
            return
        use.elementwise += _elementwise(module, _first(args, kwargs), output)
        if isinstance(module, PRODUCTS):
            use.macs += output.numel() * math.prod(module.weight.shape[1:])
            made[id(output)] = (weakref.ref(output), output._version, use)

    handles = [module.register_forward_hook(after, with_kwargs=True) for module in units]
    handles += [
        module.register_forward_pre_hook(before, with_kwargs=True)
        for module in units
        if _folds(module)
    ]
    cuda = {p.device.index for p in model.parameters() if p.device.type == "cuda"}
    try:
        with (
            torch.random.fork_rng(sorted(cuda)),
            torch.inference_mode(),  # buffers that were made in it are put back in it only
            evaluating(model),
            torch.inference_mode(False),
            torch.no_grad(),
            counted_products(model, _is_closed) as products,
        ):
            call(model, example)
    finally:
        for handle in handles:
            handle.remove()
    for (module, in_bits), macs in products.items():
        if not isinstance(module, PRODUCTS):
            uses[module].macs += macs
            uses[module].bit_macs += macs * in_bits
    return uses


def _first(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    return next(iter((*args, *kwargs.values())), None)


def _folds(module: nn.Module) -> bool:
    """Return whether a module is, in eval mode, one factor and one term per channel."""
    return isinstance(module, _NormBase) and module.running_mean is not None


def _elementwise(module: nn.Module, source: Tensor, output: Tensor) -> int:
    if isinstance(module, NORMS):
        return 2 * output.numel()
    if isinstance(module, _AdaptiveAvgPoolNd):
        return source.numel() + output.numel()
    if isinstance(module, _AvgPoolNd):
        size = cast("int | tuple[int, ...]", module.kernel_size)
        dimensions = 3 if isinstance(module, nn.AvgPool3d) else 2
        window = size**dimensions if isinstance(size, int) else math.prod(size)
        return (window + 1) * output.numel()
    return 0


def _row(
    name: str,
    module: nn.Module,
    uses: dict[nn.Module, _Use],
    rest: Rest,
    seen: set[tuple[int, int]],
) -> SummaryRow:
    use = uses[module]
    bits = module.method.bits if isinstance(module, BinaryLayer) else (REAL, REAL)
    kept = [(key, t, bits[0] if key == "weight" else REAL) for key, t in _kept(module)]
    # A tensor that layers share is stored once, unless they need it in different widths.
    fresh = [(key, t, width) for key, t, width in kept if (id(t), width) not in seen]
    seen.update((id(t), width) for _, t, width in fresh)
    weights = [(t.numel(), width) for _, t, width in fresh if isinstance(t, nn.Parameter)]
    folded = len(use.norms) == use.calls > 0 and all(uses[n].calls == 1 for n in use.norms)
    left = ("weight", "bias") if folded else ()
    scale_bytes = sum(_scale_bytes(t, w, rest) for key, t, w in fresh if key not in left)
    scale_bytes += sum(_centre_bytes(module) for key, _, _ in fresh if key == "weight")
    levels = _levels(module)
    content = sum(
        _bytes(t, w, rest) for key, t, w in fresh if key not in left[1:] and id(t) not in levels
    )
    if _folds(module):
        content = 2 * FLOAT_BYTES * cast(_NormBase, module).num_features
    cost = bits[0] * bits[1]
    # Beyond 64 a product of so many bits is dearer than a real one, and computed as such.
    bops = cost * use.macs if cost <= 64 else use.bit_macs
    return SummaryRow(
        name=name,
        kind=type(module).__name__,
        bits=(1, 1) if 0 < use.macs == use.bit_macs else bits,
        note=_note(module, use, has_matrix=any(t.dim() > 1 for _, t, _ in kept)),
        binary=sum(count for count, width in weights if width == 1),
        few_bit=sum(count for count, width in weights if 1 < width < REAL),
        real=sum(count for count, width in weights if width == REAL),
        bytes=content + scale_bytes,
        scale_bytes=scale_bytes,
        macs=use.macs,
        bops=bops,
        ops=bops / 64 + (use.macs - use.bit_macs if cost > 64 else 0),
        elementwise=use.elementwise,
    )


def _bytes(tensor: Tensor, width: int, rest: Rest) -> int:
    """Return the bytes of a tensor's values."""
    if width < REAL:
        return -(-width * tensor.numel() // 8)
    if not tensor.is_floating_point():
        return tensor.nbytes
    return tensor.numel() * (REST_BYTES[rest] if tensor.dim() > 1 else FLOAT_BYTES)


def _scale_bytes(tensor: Tensor, width: int, rest: Rest) -> int:
    """Return the bytes of one scale per row, where the values alone do not say it all."""
    integers = tensor.dim() > 1 and tensor.is_floating_point() and rest == "int8"
    return FLOAT_BYTES * tensor.shape[0] if width < REAL or integers else 0


def _centre_bytes(module: nn.Module) -> int:
    """Return the bytes of the middle of every filter's two values, where that is not 0."""
    centred = isinstance(module, BinaryLayer) and module.method.centred_values
    return FLOAT_BYTES * int(cast(BinaryLayer, module).weight.shape[0]) if centred else 0


def _levels(module: nn.Module) -> set[int]:
    """Return the ids of the tensors of elastic quantisers: a file has them in its scales."""
    parts = [part for part in module.modules() if isinstance(part, Elastic)]
    return {id(t) for part in parts for t in (*part.parameters(), *part.buffers())}


def _note(module: nn.Module, use: _Use, *, has_matrix: bool) -> str:
    if is_quantized(module):
        return "quantised: not counted"
    # A holder of parameters has no forward that could run.
    holder = getattr_static(type(module), "forward") is nn.Module.forward
    if not (use.calls or use.macs or holder):
        return "did not run"
    if has_matrix and not use.macs and not isinstance(module, (*PRODUCTS, *LOOKUPS, *NORMS)):
        return "MACs not counted"
    return f"ran {use.calls} times" if use.calls > 1 else ""
