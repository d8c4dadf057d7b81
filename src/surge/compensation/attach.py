"""Attaching SURGE to a model, and taking it off again."""

import dataclasses
from typing import Any, cast

import torch
from torch import nn

from surge.compensation.auxiliary import AuxiliaryPath
from surge.compensation.dry_run import RecordingHardtanh, Seen, dry_run, recording_clamps
from surge.compensation.handle import Compensation
from surge.compensation.kinds import PATHS
from surge.compensation.leaky_tail import LeakyTail
from surge.compensation.options import PathOptions
from surge.compensation.path import Path, Watch
from surge.errors import ConfigError, NoLayersMatchedError, UnsupportedLayerError, did_you_mean
from surge.layers.base import BinaryLayer
from surge.layers.hooks import binary_layers
from surge.patterns import Patterns, as_patterns, matches, require_each_matches


def compensate_(
    model: nn.Module,
    *,
    eta: float = 0.01,
    auxiliary: str = "independent",
    scope: str = "all",
    only: Patterns | None = None,
    skip: Patterns = (),
    example_input: Any = None,
    **more: Any,
) -> Compensation:
    """Give binarised layers an auxiliary path that repairs their input gradient, in place.

    The output of the model does not change by a single bit. Build the optimizer afterwards, so
    that it holds the auxiliary weights, and let the result ``follow`` it.

    Args:
        model: A model that :func:`surge.binarize_` has converted.
        eta: Norm of the injected gradient as a share of the main one's.
        auxiliary: ``independent``, ``copied`` (start from the layer's own weight, for pretrained
            models), ``tied`` (no weight of its own), ``pointwise`` (SURGE*), ``low_rank``, or
            ``leaky_tail`` (the control without auxiliary weights; eta is its rho).
        scope: ``all``, or only where the surrogate is zero (``clipped``) or not (``unclipped``).
        only: Name patterns of the layers to compensate; all binary layers by default.
        skip: Name patterns of layers to leave alone.
        example_input: A batch for a dry run, which finds layers whose input needs no gradient
            (a frozen stem): they get no auxiliary weight. A tuple or a dict is unpacked.
        **more: The other fields of :class:`~surge.compensation.options.PathOptions`.

    Example:
        >>> from torch import nn
        >>> from surge import binarize_, compensate_
        >>> net = nn.Sequential(nn.Linear(4, 8), nn.Linear(8, 8), nn.Linear(8, 2))
        >>> report = binarize_(net, "bnn")
        >>> print(compensate_(net, eta=0.01))
        SURGE on 1 layer (independent auxiliary, eta 0.01): 64 auxiliary weights, gone after strip_
    """
    options = _options(eta=eta, auxiliary=auxiliary, scope=scope, **more)
    _refuse_wrappers(model)
    _refuse_without_values(model)
    patterns = None if only is None else as_patterns(only, "only"), as_patterns(skip, "skip")
    needs_clipped = options.scope == "clipped" or options.dose == "clipped_share"
    chosen, skipped = _choose(model, *patterns, clipped=needs_clipped)
    seen: dict[str, Seen] = {}
    if example_input is None and options.share < 1 and options.chosen == "saliency":
        raise ConfigError('chosen="saliency" needs example_input, to see what is clipped.')
    if example_input is None and options.dose == "delivered":
        raise ConfigError('dose="delivered" needs example_input, to find the clamps.')
    if example_input is not None:
        seen = dry_run(model, chosen, example_input, measured=options.chosen == "saliency")
        for name in [name for name in chosen if not seen[name].needs_gradient]:
            skipped[name] = "its input needs no gradient"
            del chosen[name]
        if not chosen:
            raise NoLayersMatchedError("No binary layer has an input that needs a gradient.")
    for name in _left_over(options, chosen, seen):
        skipped[name] = f"left out by share={options.share:g}"
        del chosen[name]
    clamps = _clamps(options, chosen, seen)
    paths = {
        name: _build(name, layer, options, number)
        for number, (name, layer) in enumerate(chosen.items())
    }
    for name, layer in chosen.items():
        path = paths[name]
        clamp = seen[name].clamp if name in seen else None
        if options.dose == "delivered" and clamp and isinstance(path, AuxiliaryPath):
            path.bounds = (clamp.min_val, clamp.max_val)
        if name in clamps and isinstance(path, AuxiliaryPath):
            clamps[name].__class__ = RecordingHardtanh
            path.clamp = (cast(RecordingHardtanh, clamps[name]),)
        layer.auxiliary = path
    _set_watch(paths)
    return Compensation(paths, skipped)


def strip_(model: nn.Module) -> list[str]:
    """Remove all auxiliary paths, in place; return the names of the layers that had one.

    The output stays the same bit for bit, and ``state_dict`` is that of the plain model.
    """
    names = [name for name, layer in binary_layers(model) if layer.auxiliary is not None]
    if not names:
        raise ConfigError("strip_: no layer of this model is compensated; nothing to remove.")
    for _, layer in binary_layers(model):
        if isinstance(layer.auxiliary, AuxiliaryPath):
            _ask_watch(layer.auxiliary)
        layer.auxiliary = None
    for clamp in recording_clamps(model):
        clamp.preactivation = None
        clamp.__class__ = nn.Hardtanh  # type: ignore[assignment]
    return names


def _options(**values: Any) -> PathOptions:
    known = [field.name for field in dataclasses.fields(PathOptions)]
    for name in values:
        if name not in known:
            raise ConfigError(
                f'compensate_ has no setting "{name}".{did_you_mean(name, known)} '
                f"Settings: {', '.join(known)}."
            )
    return PathOptions(**values)


def _refuse_wrappers(model: nn.Module) -> None:
    for module in model.modules():
        if isinstance(module, nn.DataParallel):
            raise UnsupportedLayerError(
                "compensate_ does not support nn.DataParallel, whose replicas lose the scale; "
                "use DistributedDataParallel (torchrun)."
            )
        if isinstance(module, nn.parallel.DistributedDataParallel):
            raise UnsupportedLayerError(
                "compensate_ got a DistributedDataParallel, which would not synchronise the new "
                "auxiliary weights; compensate model.module first, then wrap it."
            )
        if type(module).__name__ in ("FullyShardedDataParallel", "FSDPModule") or any(
            base.__name__ == "FSDPModule" for base in type(module).__mro__
        ):
            raise UnsupportedLayerError(
                "compensate_ does not support FSDP, which shards the auxiliary weights; binary "
                "networks are small: use DistributedDataParallel."
            )


def _refuse_without_values(model: nn.Module) -> None:
    if torch.is_inference_mode_enabled():
        raise ConfigError(
            "compensate_ runs inside torch.inference_mode(), whose tensors cannot be trained."
        )
    for name, layer in binary_layers(model):
        if layer.weight.is_meta:
            raise ConfigError(
                f'compensate_: the weight of "{name}" has no values yet (device meta); load or '
                "initialise the model first."
            )


def _choose(
    model: nn.Module, only: tuple[str, ...] | None, skip: tuple[str, ...], *, clipped: bool
) -> tuple[dict[str, BinaryLayer], dict[str, str]]:
    layers = {n: m for n, m in binary_layers(model) if m.geometry.kind != "embedding"}
    if not layers:
        raise NoLayersMatchedError(
            "compensate_: this model has no binary layer; call surge.binarize_ first."
        )
    for name, layer in layers.items():
        if layer.auxiliary is not None:
            raise ConfigError(f'"{name}" is compensated already; call strip_ before compensate_.')
    names = list(layers)
    require_each_matches(only or (), names, "only")
    require_each_matches(skip, names, "skip")
    skipped: dict[str, str] = {}
    for name, layer in layers.items():
        if (only is not None and not matches(name, only)) or matches(name, skip):
            skipped[name] = "left out by pattern"
        elif layer.method.not_compensable:
            skipped[name] = layer.method.not_compensable
        elif clipped and not _clips(layer):
            skipped[name] = f"{layer.method.name} clips nothing, so that nothing would be injected"
    chosen = {name: layer for name, layer in layers.items() if name not in skipped}
    if not chosen:
        reasons = "; ".join(sorted(set(skipped.values())))
        raise NoLayersMatchedError(f"compensate_ has no layer left to compensate: {reasons}.")
    return chosen, skipped


def _clips(layer: BinaryLayer) -> bool:
    """Return whether the surrogate is zero anywhere, however far out."""
    g = layer.geometry
    far = layer.weight.new_full((1, g.in_features, *(1 for _ in g.kernel_size)), 1e4)
    outside = (layer.method.surrogate_is_zero(z) for z in (far, -far))
    return any(bool(found.any()) for found in outside)


def _left_over(
    options: PathOptions, chosen: dict[str, BinaryLayer], seen: dict[str, Seen]
) -> list[str]:
    """Return the layers beyond the wanted share; at least one always stays."""
    names = list(chosen)
    kept = max(1, round(options.share * len(names)))
    if kept == len(names):
        return []
    if options.chosen == "saliency":
        order = sorted(range(len(names)), key=lambda place: -seen[names[place]].clipped)
    else:
        generator = torch.Generator().manual_seed(options.seed)
        order = torch.randperm(len(names), generator=generator, device="cpu").tolist()
    return [names[place] for place in sorted(order[kept:])]


def _clamps(
    options: PathOptions, chosen: dict[str, BinaryLayer], seen: dict[str, Seen]
) -> dict[str, nn.Hardtanh]:
    if options.aux_input != "above_clamp":
        return {}
    if not seen:
        raise ConfigError('aux_input="above_clamp" needs example_input, to find the clamps.')
    found = {name: seen[name].clamp for name in chosen}
    for name, clamp in found.items():
        if clamp is None:
            raise ConfigError(
                f'aux_input="above_clamp": the input of "{name}" is not the output of a Hardtanh '
                "(not in place, nor used again before that layer runs); leave it out with skip=."
            )
    return {name: clamp for name, clamp in found.items() if clamp is not None}


def _build(name: str, layer: BinaryLayer, options: PathOptions, number: int) -> Path:
    generator = torch.Generator().manual_seed(options.seed * 100_003 + number)
    try:
        if options.auxiliary == "leaky_tail":
            return LeakyTail(layer, options)
        path = PATHS[options.auxiliary](layer, options, generator)
        return path.requires_grad_(options.objective == "follow" or options.align > 0)
    except ConfigError as error:
        raise ConfigError(f'compensate_ on "{name}": {error}.') from error


def _set_watch(paths: dict[str, Path]) -> None:
    """Let the layers watch together, if there are scales that must be renewed."""
    watch = Watch()
    for path in paths.values():
        adapts = path.options.fixed_scale is None or path.options.weight_side
        if isinstance(path, AuxiliaryPath) and adapts:
            path.watch = watch


def _ask_watch(path: AuxiliaryPath) -> None:
    """Say of a model that was trained compiled, where forwards are not counted, what was missed."""
    collected = any(probe.grad is not None for probe in path.probes.values())
    if path.watch is not None and not path.watch.settled and not path.forwards and collected:
        path.watch.warn("Compiled training steps")
